"""Reports as files, while a study runs and when it is done."""

import re
import shlex
import shutil
import time
from dataclasses import replace

import pytest
from PIL import Image

from dap.cli import main
from dap.errors import DapError
from dap.report import Findings, all_tables, read_records
from dap.report.origin import origin_of
from dap.report.page import Contents, Page, vega
from dap.report.writing import read_contents, watch_page, write_files, write_page
from dap.specs.run_files import write_json


def test_a_study_that_has_just_begun(study, tmp_path):
    shutil.copytree(study.folder / "studies", tmp_path / "runs" / "studies")
    for run in study.folder.glob("train-*"):
        shutil.copytree(run, tmp_path / "runs" / run.name)
    text = (tmp_path / "runs" / "studies" / "study.yaml").read_text().replace("target: a", "target: [a, b]")
    (tmp_path / "runs" / "studies" / "study.yaml").write_text(text)
    contents = read_contents(tmp_path / "runs")
    assert all(cell is None for row in contents.tables[0].rows for cell in row.cells[1:])
    assert not [name for name in write_files(contents, tmp_path / "files") if name.endswith("svg")]
    assert "accuracy-and-sparsity" not in Page(contents).html().replace(vega(), "")


def test_every_table_and_figure_as_files(study, tmp_path):
    names = write_files(read_contents(study.folder, with_paper=True, overlaps=True), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    stems = {name.split(".")[0] for name in names if name.endswith(".svg")}
    assert stems == {
        "accuracy-and-sparsity", "dynamics", "alpha", "attacks", "logits", "layers"
    }  # fmt: skip
    for name in stems:
        assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert len(picture.convert("RGB").getcolors(1 << 22) or []) > 10
    # A legend names what is drawn, and nothing else.
    named = {
        name: set(re.findall(r">(Dense|Magnitude|DAP)</text>", (tmp_path / name).read_text()))
        for name in names
        if name.endswith("svg")
    }
    assert (named["layers.svg"], named["dynamics.svg"]) == ({"Magnitude", "DAP"}, {"Dense", "DAP"})
    assert (tmp_path / "pruning.tex").read_text().startswith("\\begin{table}")
    assert (tmp_path / "published-suites.md").exists()
    agreement = (tmp_path / "overlaps.md").read_text()
    assert "| methods | DAP / DAP, α = 0 | 50 % |" in agreement
    assert "| seeds | DAP | 50 % |" in agreement


def test_watching_ends_with_the_study(study, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(study.folder, folder)
    late = next(folder.glob("prune-*/result.json"))
    kept = late.read_bytes()
    late.unlink()
    news = watch_page(folder, tmp_path / "report.html", pause=0.05)
    assert "19 of 20 runs are done" in next(news)
    assert '<meta http-equiv="refresh"' in (tmp_path / "report.html").read_text()
    late.write_bytes(kept)
    assert "20 of 20 runs are done" in next(news)
    assert next(news, None) is None
    write_json(late.parent / "failure.json", {"error": "no room"})
    late.unlink()
    assert "1 failed. The first failure:" in next(watch_page(folder, tmp_path / "failed.html", pause=0.05))
    assert '<meta http-equiv="refresh"' not in (tmp_path / "failed.html").read_text()  # nothing is to come
    assert '<meta http-equiv="refresh"' not in (tmp_path / "report.html").read_text()


def test_studies_that_share_a_folder(study, tmp_path):
    folder = tmp_path / "runs of two"
    shutil.copytree(study.folder, folder)
    kept = folder / "studies" / "study.yaml"
    (folder / "studies" / "more.yaml").write_text(
        kept.read_text().replace("seed: [0, 1]", "seed: [1, 2]").replace("name: tiny", "name: more")
    )
    origin = origin_of(folder)
    assert (origin.title, origin.finished) == ("more, tiny", False)
    assert origin.status.startswith("20 of 30 runs are done.")  # seed 1 is of both
    assert [name for name in origin.documents if name.endswith("yaml")] == ["more.yaml", "study.yaml"]
    assert origin.commands[0] == f"dap study run '{folder}/studies/more.yaml' --out '{folder}'"
    assert main(shlex.split(origin.commands[1])[1:]) == 0  # which is done


@pytest.mark.slow
def test_a_study_of_500_runs(records, findings, study):
    """In time, and not too large."""

    def times(rows):
        return [
            replace(row, seed=seed, suite=suite, series=f"{row.series} {number}", dense=f"{row.dense} {number}")
            for suite in ("one", "two", "three", "four", "five")
            for number in range(3)
            for seed in range(5)
            for row in rows
            if row.seed == 0
        ]

    many = times(records)
    models = {(one.series, one.suite, one.targets, one.seed) for one in many}
    evaluations = {(one.series, one.suite, one.targets, one.seed) for one in times(findings.robustness)}
    assert len(models) + len(evaluations) >= 500  # runs
    found = Findings(times(findings.robustness), findings.histograms, findings.points)
    vega()  # bundled once for all pages
    start = time.perf_counter()
    text = Page(Contents(many, found, origin_of(study.folder), all_tables(many, found.robustness))).html()
    assert time.perf_counter() - start < 10
    assert len(text.encode()) < 8e6


def test_one_run_and_nothing(study, tmp_path, records):
    run = next(one.run for one in records if one.series == "DAP")
    write_page(read_contents(study.folder / run), tmp_path / "one.html")
    assert "1 of 1 run is done" in (tmp_path / "one.html").read_text()
    assert "dap prune" in (tmp_path / "one.html").read_text()
    assert {one.series for one in read_records(study.folder / run)} == {"Dense", "DAP"}
    with pytest.raises(DapError, match=r"there is no folder .*nowhere"):
        next(watch_page(tmp_path / "nowhere", tmp_path / "none.html"))
    with pytest.raises(DapError, match="there are no runs"):
        write_page(read_contents(tmp_path), tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
