"""The page in a real browser, made from a real study."""

import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from PIL import Image

from dap.errors import DapError
from dap.report import Record, all_tables
from dap.report.origin import origin_of
from dap.report.page import VEGA, Contents, Page, vega
from dap.report.writing import read_contents, write_page


@pytest.fixture(scope="module")
def file(study, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_page(read_contents(study.folder, with_paper=True, overlaps=True), file)
    return file


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs a Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, file):
    """The page, at any size and in either scheme; what it says on the console, and what it asks the network for."""
    contexts = []

    def open_page(width=1280, scheme="light", address=None):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(address or file.as_uri())
        page.wait_for_selector("body[data-ready=yes]")
        return page

    yield open_page
    for context in contexts:
        context.close()


def shown(page, selector):
    return page.locator(f"{selector}:visible").all_inner_texts()


def test_it_is_whole_and_quiet(opened, file):
    page = opened()
    assert page.said == []
    assert page.asked == [file.as_uri()]
    assert page.title() == "tiny"
    assert "20 of 20 runs are done" in page.locator(".status").inner_text()
    assert not re.search(r"""(src|href)=["']https?:""", file.read_text())


def test_charts_are_drawn(opened):
    page = opened()
    charts = page.locator(".chart").all()
    assert len(charts) >= 9
    for chart in charts:
        picture = Image.open(io.BytesIO(chart.screenshot())).convert("RGB")
        colours = picture.getcolors(1 << 20)
        assert colours is not None
        ink = sum(count for count, (r, g, b) in colours if max(r, g, b) - min(r, g, b) > 40)  # neither white nor grey
        assert ink > 60, chart.get_attribute("id")
        assert chart.locator("svg").count() == 1


def test_the_slider_moves_charts_tables_and_summary(opened, records):
    page = opened()
    slider = page.locator("#sparsity")
    assert page.locator("#sparsity-shown").inner_text() == "50 %"
    before = {name: page.locator(f"#chart-{name}-0 svg").inner_html() for name in ("layers", "attacks")}
    assert set(shown(page, "#table-suites tbody td:nth-child(2)")) == {"0 %", "50 %"}
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(300)
    assert page.locator("#sparsity-shown").inner_text() == "30 %"
    assert set(shown(page, "#table-suites tbody td:nth-child(2)")) == {"0 %", "30 %"}
    for name, svg in before.items():
        assert page.locator(f"#chart-{name}-0 svg").inner_html() != svg, name
    (text,) = shown(page, ".summary p")
    ours = [one.unseen for one in records if (one.series, one.wished) == ("DAP", "0.3")]
    assert f"right {100 * fmean(ours):.1f}" in text
    page.locator("#every").check()
    assert set(shown(page, "#table-suites tbody td:nth-child(2)")) == {"0 %", "30 %", "50 %"}


def test_methods_are_switched_off_and_the_address_remembers(opened):
    page = opened()
    chart = page.locator("#chart-accuracy-and-sparsity-0 svg")
    marks = chart.locator(".mark-symbol path").count()
    page.get_by_role("checkbox", name="Magnitude").uncheck()
    page.wait_for_timeout(300)
    assert "Magnitude" not in shown(page, "#table-suites tbody td:nth-child(1)")
    assert chart.locator(".mark-symbol path").count() == marks - 3  # at 0, 30 and 50 %
    page.get_by_role("checkbox", name="DAP", exact=True).uncheck()
    assert [heading.split(":")[0] for heading in shown(page, "#logits h4")] == ["images, DAP, α = 0"]
    again = opened(address=page.url)
    assert not again.get_by_role("checkbox", name="Magnitude").is_checked()
    assert "Magnitude" not in shown(again, "#table-suites tbody td:nth-child(1)")


def test_tables_sort_by_keyboard(opened):
    page = opened()
    button = page.locator("#table-pruning thead button", has_text="accuracy")
    button.focus()
    for key, order in (("Enter", "descending"), ("Space", "ascending")):
        page.keyboard.press(key)
        assert page.locator("#table-pruning th[aria-sort]").get_attribute("aria-sort") == order
        values = [float(text.split(" ")[0]) for text in shown(page, "#table-pruning tbody td:nth-child(3)")]
        assert values == sorted(values, reverse=order == "descending")
    again = opened(address=page.url)
    assert [float(text.split(" ")[0]) for text in shown(again, "#table-pruning tbody td:nth-child(3)")] == values


def test_a_sparsity_that_was_not_evaluated_is_said(study, records, findings, opened, tmp_path):
    some = replace(findings, robustness=[one for one in findings.robustness if one.wished != "0.3"])
    write_page(Contents(records, some, origin_of(study.folder), all_tables(records)), tmp_path / "some.html")
    page = opened(address=(tmp_path / "some.html").as_uri())
    assert shown(page, ".absent") == []
    page.locator("#sparsity").focus()
    page.keyboard.press("ArrowLeft")
    assert set(shown(page, ".absent")) == {"Nothing was evaluated at this sparsity."}
    assert shown(page, "#layers .absent") == []


def test_curves_show_where_a_sparsity_is_reached(study, records, findings, opened, tmp_path):
    points = [replace(one, sparsity=one.step / 10) for one in findings.points if one.series == "DAP"]
    flat = {"edges": [-2.0, -1.0, 0.0, 1.0, 2.0], "counts": [16, 4, 10, 10], "threshold": 1.5}
    found = replace(findings, points=points, histograms=[replace(findings.histograms[0], values=flat)])
    contents = Contents(records, found, origin_of(study.folder), all_tables(records))
    write_page(contents, tmp_path / "curves.html")
    page = opened(address=(tmp_path / "curves.html").as_uri())
    curve = page.locator("#chart-dynamics-0 .mark-rule.role-mark line")
    logits = page.locator("#chart-logits-0 .mark-rule.role-mark line[stroke-dasharray='1,3']")
    before = [rule.bounding_box()["x"] for rule in (curve, logits)]
    page.locator("#sparsity").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(300)
    # Step 4 instead of 6; λ̃ = -1, below which 40 % of the weights lie, instead of 0, below which half of them do.
    assert curve.bounding_box()["x"] < before[0]
    assert logits.bounding_box()["x"] < before[1]
    page.get_by_role("checkbox", name="DAP", exact=True).uncheck()
    page.wait_for_timeout(300)
    assert curve.count() == 0


def test_the_first_sparsity_can_be_chosen(study, opened, tmp_path):
    contents = read_contents(study.folder, sparsity="0.3")
    write_page(contents, tmp_path / "chosen.html")
    assert opened(address=(tmp_path / "chosen.html").as_uri()).locator("#sparsity-shown").inner_text() == "30 %"
    assert Page(replace(contents, sparsity=".29")).look.sparsity == "0.3"  # what is nearest
    assert Page(replace(contents, records=[], sparsity="0.3")).look.sparsity == ""
    with pytest.raises(DapError, match=r"no model was asked for at 2:4; there are 0.3, 0.5"):
        write_page(replace(contents, sparsity="2:4"), tmp_path / "none.html")


def test_a_chart_that_was_hidden_is_drawn_when_it_appears(opened, file):
    page = opened(address=f"{file.as_uri()}#off=DAP")
    chart = page.locator("#chart-logits-0 svg")
    assert not chart.is_visible()
    page.get_by_role("checkbox", name="DAP", exact=True).check()
    page.wait_for_timeout(300)
    assert float(chart.get_attribute("width")) > 200


def test_hovering_tells_the_values(opened):
    page = opened()
    page.locator("#chart-accuracy-and-sparsity-0 .mark-symbol path").last.hover(force=True)
    text = page.locator("#vg-tooltip-element").inner_text()
    assert "accuracy" in text
    assert re.search(r"\d\.\d%", text)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1280, "light")])
def test_it_can_be_read(opened, width, scheme):
    """Wide enough nowhere scrolls sideways; contrast, names and roles pass axe's checks."""
    from axe_playwright_python.sync_playwright import Axe

    page = opened(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_every_control_is_reached_by_keyboard(opened):
    page = opened()
    reached = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.outerHTML.slice(0, 80)"))
        if page.evaluate("document.activeElement === document.body"):
            break
    assert {"sparsity", "every"} <= reached
    assert sum("data-series" in name for name in reached) == 5
    assert any("data-column" in name for name in reached)
    assert any("<summary" in name for name in reached)


def test_it_prints(opened):
    page = opened()
    page.emulate_media(media="print")
    assert not page.locator("#sparsity").is_visible()
    assert page.locator("#sparsity-shown").is_visible()  # and what the lines are
    assert page.locator(".controls .swatch").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_published_numbers_are_apart(opened):
    page = opened()
    ours = page.locator("#tables").inner_text()
    assert "Published" not in ours
    assert "86.0 ± 0.4" in page.locator("#paper").inner_text()


def test_long_names_wrap(records, findings, study, opened, tmp_path):
    long = "hf:somebody/with-a-very-long-name-for-a-suite-of-images-from-many-hospitals-and-cameras"
    renamed = [_renamed(record, long) for record in records]
    write_page(Contents(renamed, findings, origin_of(study.folder), all_tables(renamed)), tmp_path / "long.html")
    page = opened(390, address=(tmp_path / "long.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_changed_address_changes_the_page(opened):
    page = opened()
    page.evaluate("location.hash = 'sparsity=0.3&off=DAP'")
    page.wait_for_timeout(200)
    assert page.locator("#sparsity-shown").inner_text() == "30 %"
    assert "DAP" not in shown(page, "#table-suites tbody td:nth-child(1)")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert "sparsity=0.3" in page.url


EVIL = """</script><img src=x onerror="ran=1"><script>ran=1</script>'"`${ran=1}`{{ran=1}}<svg/onload=ran=1>"""


def test_nothing_in_a_name_becomes_a_part_of_the_page(records, findings, study, opened, tmp_path):
    """Its text is the name; the page runs nothing of it and asks for nothing, also where the mouse shows it."""
    renamed = [_renamed(record, EVIL) for record in records]
    origin = replace(origin_of(study.folder), title=EVIL, status=EVIL, commands=(EVIL,), documents={EVIL: EVIL})
    write_page(Contents(renamed, findings, origin, all_tables(renamed)), tmp_path / "evil.html")
    page = opened(address=(tmp_path / "evil.html").as_uri())
    page.locator("#chart-accuracy-and-sparsity-0 .mark-symbol path").last.hover(force=True)
    assert EVIL in page.locator("#vg-tooltip-element").inner_text()
    page.locator("#sparsity").focus()
    page.keyboard.press("ArrowLeft")
    assert page.title() == EVIL == page.locator("h1").inner_text()
    assert EVIL in page.locator("#chart-layers-0").locator("xpath=../h4").inner_text()
    assert page.evaluate("[typeof ran, document.images.length, document.scripts.length]") == ["undefined", 0, 3]
    assert page.asked == [(tmp_path / "evil.html").as_uri()]
    assert page.said == []


SCRIPT = """() => {
  const script = document.createElement("script");
  script.textContent = "window.ran = 1";
  document.body.append(script);
  const images = "<img src='data:,' onerror='window.ran = 1'><img src='http://127.0.0.1:9/x'>";
  document.body.insertAdjacentHTML("beforeend", images);
  setTimeout("window.ran = 1");
}"""


def test_the_page_runs_its_own_scripts_only_and_fetches_nothing(opened, file):
    """Even if something got into it."""
    page = opened()
    page.evaluate(SCRIPT)
    page.wait_for_timeout(200)
    assert page.evaluate("typeof ran") == "undefined"
    refused = [text for text in page.said if "Content Security Policy" in text]
    assert len(refused) == 4
    assert any("127.0.0.1" in text for text in refused)
    assert "unsafe-eval" not in file.read_text().split("</head>")[0]


def test_only_known_scripts_are_embedded(monkeypatch, tmp_path):
    import vl_convert

    monkeypatch.setenv("DAP_CACHE", str(tmp_path))
    known = vega()
    (kept,) = tmp_path.glob("vega-*.js")
    kept.write_text("alert(1)")  # it is made again
    assert vega() == known
    kept.write_text("alert(1)")
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: "alert(1)")
    with pytest.raises(DapError, match=r"pip install --force-reinstall vl-convert-python==[\w.]+$"):
        vega()


def test_the_known_scripts_are_those_of_the_installed_package():
    place = Path(__file__).parents[2]
    assert VEGA in (place / "constraints.txt").read_text().splitlines()
    assert f'"{VEGA}"' in (place / "pyproject.toml").read_text()


def _renamed(record: Record, name: str) -> Record:
    return replace(record, series=f"{record.series} {name}", dense=f"{record.dense} {name}", suite=name)


def test_the_origin_says_what_runs_took(study):
    times, versions = origin_of(study.folder).tables
    rows = {row.cells[0]: row.cells[1:] for row in times.rows}
    assert [rows[kind][0] for kind in ("train", "prune dap", "evaluate")] == ["2", "2", "10"]
    assert all(re.fullmatch(r"\d+ s|\d+ min \d+ s", cell) for row in rows.values() for cell in row[1:])
    (row,) = versions.rows
    assert row.cells[0] == "20"
    assert f"torch {torch.__version__}" in row.cells[5]
