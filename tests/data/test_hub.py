"""Hugging Face datasets, from local folders: nothing here touches the network."""

import gc
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_suites import encoded, picture

from dap.data import load_suite
from dap.data.augmentation import normalise
from dap.data.decoding import decode
from dap.errors import DapError

datasets = pytest.importorskip("datasets", reason="needs datasets: pip install 'dap[hub]'")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()


# The library leaves a file open here and there, and complains of itself when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()  # not in a test of something else


def table(**changes: Any) -> Any:
    columns = {
        "image": [{"bytes": encoded(seed), "path": None} for seed in range(4)],
        "label": [1, 0, 1, 1],
        "domain": ["photo", "art", "photo", "art"],
    }
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["zebra", "ant"]),
        "domain": datasets.Value("string"),
    }
    columns |= changes
    return datasets.Dataset.from_dict(
        columns, datasets.Features({name: features.get(name, datasets.Value("string")) for name in columns})
    )


def test_saved_to_disk(tmp_path: Path) -> None:
    table(group=["x", "y", "y", "z"]).save_to_disk(tmp_path / "saved")
    suite = load_suite(f"hf:{tmp_path / 'saved'}", pixels=16, cache=tmp_path / "cache")
    assert suite.name == "saved"
    assert suite.classes == ("ant", "zebra")
    art, photo = suite.domains["art"], suite.domains["photo"]
    assert art.labels.tolist() == [1, 0]
    assert photo.labels.tolist() == [0, 0]
    assert art.groups.tolist() == [1, 2]
    assert photo.names == ["row 0", "row 2"]
    plain = load_suite(f"hf:{tmp_path / 'saved'}", pixels=16, cache=False)
    for loaded in (suite, plain):
        assert torch.equal(loaded.domains["photo"][1][0], normalised(encoded(2), 16))
        assert torch.equal(loaded.domains["art"][0][0], normalised(encoded(1), 16))


def normalised(file: bytes, pixels: int) -> torch.Tensor:
    out = np.empty((3, pixels, pixels), np.float32)
    normalise(decode(BytesIO(file), pixels)[0], out)
    return torch.from_numpy(out)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library leaves metadata.csv open
def test_image_folder_with_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for seed in range(3):
        picture(seed).save(folder / f"{seed}.png")
    lines = ["file_name,label,domain", "0.png,cat,day", "1.png,dog,day", "2.png,cat,night"]
    (folder / "metadata.csv").write_text("\n".join(lines))
    suite = load_suite(f"hf:{folder}", pixels=16, cache=tmp_path / "cache")
    assert suite.classes == ("cat", "dog")
    assert [len(images) for images in suite.domains.values()] == [2, 1]
    assert suite.domains["day"][0][0].shape == (3, 16, 16)


def test_parquet_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table().to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    suite = load_suite(f"hf:{tmp_path / 'data'}", pixels=16, cache=tmp_path / "cache")
    assert list(suite.domains) == ["art", "photo"]
    assert suite.domains["art"].batch(torch.arange(2))[1].tolist() == [1, 0]


def test_splits_are_chosen_by_name(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": table(), "test": table(domain=["a", "b", "a", "b"])}).save_to_disk(tmp_path / "two")
    assert list(load_suite(f"hf:{tmp_path / 'two'}@test", pixels=8, cache=False).domains) == ["a", "b"]
    for wrong in ("", "@validation"):
        with pytest.raises(DapError, match="has the splits train, test: choose one, as in hf:.*@train"):
            load_suite(f"hf:{tmp_path / 'two'}{wrong}", pixels=8, cache=False)


def test_damaged_image_is_named_and_skipped(tmp_path: Path) -> None:
    images = [{"bytes": encoded(0), "path": None}] * 3 + [{"bytes": b"no image", "path": None}]
    table(image=images).save_to_disk(tmp_path / "saved")
    with pytest.raises(DapError, match="1 of 4 images of saved cannot be read: row 3;"):
        load_suite(f"hf:{tmp_path / 'saved'}", pixels=8, cache=tmp_path / "cache")
    with pytest.warns(UserWarning, match="1 of 4 images of saved cannot be read and are left out: row 3"):
        suite = load_suite(f"hf:{tmp_path / 'saved'}", pixels=8, cache=tmp_path / "cache", on_corrupt="skip")
    assert len(suite.domains["art"]) == 1


def unreachable(name: str) -> None:
    raise ConnectionError("no such name\nand a second line")


def test_faults_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table().remove_columns("domain").save_to_disk(tmp_path / "bare")
    with pytest.raises(DapError, match="has no column 'domain', only image, label"):
        load_suite(f"hf:{tmp_path / 'bare'}")
    table(domain=["a", None, "a", "b"]).save_to_disk(tmp_path / "gap")
    with pytest.raises(DapError, match="has the domain None in row 1"):
        load_suite(f"hf:{tmp_path / 'gap'}")
    table(label=[0, -1, 1, 1]).save_to_disk(tmp_path / "unknown")
    with pytest.raises(DapError, match="has the label None in row 1"):
        load_suite(f"hf:{tmp_path / 'unknown'}")
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DapError, match=r"cannot load the dataset nobody/nothing \(no such name\): check its name"):
        load_suite("hf:nobody/nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DapError, match=r"needs the datasets library: pip install 'dap\[hub\]'"):
        load_suite("hf:nobody/nothing")


def test_real_images(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "PACS"
    files = [sorted((folder / domain).glob("*/*.jpg"))[0] for domain in ("photo", "sketch")]
    images = [{"bytes": file.read_bytes(), "path": None} for file in files] * 2
    table(image=images, domain=["photo", "sketch"] * 2).save_to_disk(tmp_path / "pacs")
    ours = load_suite(f"hf:{tmp_path / 'pacs'}", pixels=64, cache=False)
    for domain, file in zip(("photo", "sketch"), files, strict=True):
        assert torch.equal(ours.domains[domain][0][0], normalised(file.read_bytes(), 64))
