from pathlib import Path

import pytest
from small_suites import encoded, make_folder

from dap.data.folders import list_folder
from dap.data.suites import list_suite
from dap.errors import DapError
from dap.models.torchvision_repair import repair_torchvision

repair_torchvision()
from torchvision.datasets import ImageFolder  # noqa: E402


def expect_torchvisions_order(folder: Path) -> None:
    contents = list_folder(folder)
    for domain, listing in contents.domains.items():
        theirs = ImageFolder(str(folder / domain))
        assert [str(folder / name) for name in listing.names] == [path for path, _ in theirs.samples]
        assert [contents.classes[label] for label in listing.labels] == [theirs.classes[at] for at in theirs.targets]


def test_order_is_torchvisions(tmp_path: Path) -> None:
    make_folder(tmp_path, {"photo": {"dog": 12, "Cat": 3, "a-b": 2, "a": 2}, "art": {"dog": 2}})
    for name in (
        "photo/dog/sub/z.jpg",
        "photo/dog/sub-1/y.JPG",
        "photo/dog/B.jpeg",
        "photo/a/é.webp",
        "art/dog/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encoded(0))
    expect_torchvisions_order(tmp_path)


def test_order_of_pacs_is_torchvisions(shared: Path) -> None:
    expect_torchvisions_order(shared / "data" / "PACS")


def test_classes_are_the_union_and_domains_are_sorted(tmp_path: Path) -> None:
    contents = list_suite(make_folder(tmp_path / "mine", {"b": {"dog": 1, "ant": 2}, "a": {"cat": 1}}))
    assert contents.name == "mine"
    assert contents.classes == ("ant", "cat", "dog")
    assert list(contents.domains) == ["a", "b"]
    assert contents.domains["b"].labels.tolist() == [0, 0, 2]
    assert list(contents.domains["b"].names) == ["b/ant/0.png", "b/ant/1.png", "b/dog/0.png"]


def test_hidden_names_are_ignored(tmp_path: Path) -> None:
    make_folder(tmp_path, {"a": {"cat": 1, ".cache": 1}, ".git": {"x": 1}})
    (tmp_path / "a" / "cat" / "._0.png").write_bytes(b"not an image")
    (tmp_path / "a" / "cat" / ".hidden").mkdir()
    (tmp_path / "a" / "cat" / ".hidden" / "0.png").write_bytes(b"not an image")
    contents = list_suite(tmp_path)
    assert contents.classes == ("cat",)
    assert list(contents.domains["a"].names) == ["a/cat/0.png"]


def test_fingerprint_follows_names_and_contents(tmp_path: Path) -> None:
    make_folder(tmp_path, {"a": {"cat": 2}})
    prints = [list_folder(tmp_path).domains["a"].fingerprint for _ in range(2)]
    (tmp_path / "a/cat/0.png").write_bytes(encoded(50, width=9))
    prints.append(list_folder(tmp_path).domains["a"].fingerprint)
    (tmp_path / "a/cat/0.png").rename(tmp_path / "a/cat/7.png")
    prints.append(list_folder(tmp_path).domains["a"].fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({}, "no domains in"),
        ({"a": {}}, "no images in .*a: images are expected as <domain>/<class>/<image>"),
        ({"a": {"cat": 1}, "b": {"cat": 0}}, "no images in .*b"),
        ({"a": {"cat": 1, "dog": 0}}, "class 'dog' .* no images in any domain"),
    ],
)
def test_empty_folders(tmp_path: Path, images: dict[str, dict[str, int]], message: str) -> None:
    (tmp_path / "suite").mkdir()
    for domain in images:
        (tmp_path / "suite" / domain).mkdir()
    with pytest.raises(DapError, match=message):
        list_suite(make_folder(tmp_path / "suite", images))


def test_an_empty_class_folder_is_fine_if_another_domain_has_the_class(tmp_path: Path) -> None:
    contents = list_suite(make_folder(tmp_path, {"a": {"cat": 1, "dog": 0}, "b": {"dog": 1}}))
    assert contents.classes == ("cat", "dog")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DapError, match="is no folder and no suite: give PACS, "):
        list_suite(tmp_path / "nothing")
    with pytest.raises(
        DapError, match="no art_painting, cartoon, photo and 1 more of PACS in .*: give its parent folder"
    ):
        list_suite("PACS", tmp_path)
