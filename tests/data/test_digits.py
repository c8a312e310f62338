import importlib
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor
from torch.utils.data import TensorDataset

from dap.data import DOMAINS, SUITES, digits

# The function `digits` hides the module of that name from `import`.
module = importlib.import_module("dap.data.digits")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole cache in it; tests that write take a folder of their own."""
    folder = tmp_path_factory.mktemp("cache")
    digits(folder)
    return folder


def same(a: dict[str, TensorDataset], b: dict[str, TensorDataset]) -> bool:
    return all(torch.equal(x, y) for d in DOMAINS for x, y in zip(a[d].tensors, b[d].tensors, strict=True))


def no_build() -> dict[str, Tensor]:
    raise AssertionError("built although there is a cache")


def test_domains_are_sorted_and_complete(cache: Path) -> None:
    assert list(digits(cache)) == list(DOMAINS) == sorted(module.LOOKS)
    assert {domain: len(data) for domain, data in digits(cache).items()} == SUITES["digits"].images


@pytest.mark.parametrize("domain", DOMAINS)
def test_images_and_labels_are_as_promised(cache: Path, domain: str) -> None:
    images, labels = digits(cache)[domain].tensors
    assert images.shape == (len(labels), 3, 32, 32)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert 0 <= images.min() < 0.1
    assert 0.9 < images.max() <= 1
    # Within one of each other over the domains: 174 to 183 of every class, in four.
    assert all(43 <= count <= 46 for count in torch.bincount(labels, minlength=10))
    assert len(torch.unique(labels)) == 10


def test_every_handwritten_digit_is_in_exactly_one_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def spy(glyphs: Tensor, generator: Generator) -> Tensor:
        seen.append(glyphs)
        return glyphs.expand(-1, 3, -1, -1)

    monkeypatch.setattr(module, "LOOKS", dict.fromkeys(DOMAINS, spy))
    module._build()
    scans, _ = module._scans()
    drawn, expected = (torch.unique(x.flatten(1), dim=0) for x in (torch.cat(seen), module._glyphs(scans)))
    assert sum(map(len, seen)) == len(scans) == 1797
    assert torch.equal(drawn, expected)


def test_partition_covers_all_and_balances_classes() -> None:
    labels = torch.tensor([0] * 9 + [1] * 14)
    parts = module.partition(labels, torch.Generator().manual_seed(3))
    assert sorted(torch.cat(list(parts.values())).tolist()) == list(range(23))
    counts = torch.stack([torch.bincount(labels[part], minlength=2) for part in parts.values()])
    assert (counts.amax(0) - counts.amin(0)).max() <= 1


def test_labels_belong_to_their_images(cache: Path) -> None:
    images, labels = digits(cache)["plain"].tensors
    scans, every = module._scans()
    glyphs = module._glyphs(scans)
    nearest = torch.cdist(1 - images[:, 0].flatten(1), glyphs.flatten(1)).argmin(1)
    assert torch.equal(labels, every[nearest])


def test_looks_differ_as_their_names_say() -> None:
    bar = torch.zeros(64, 1, 32, 32)
    bar[:, :, 6:26, 12:20] = 1
    images = {domain: look(bar, torch.Generator().manual_seed(0)) for domain, look in module.LOOKS.items()}
    inside, away, border = (..., slice(15, 17), slice(15, 17)), (..., slice(0, 4), slice(0, 4)), (..., 16, 12)
    assert (images["plain"][inside] == 0).all()
    assert (images["plain"][away] == 1).all()
    assert (images["outline"][inside] == 1).all()
    assert (images["outline"][border] == 0).all()
    assert (images["textured"][inside].mean((2, 3)) > images["textured"][away].mean((2, 3))).all()
    assert images["textured"].std(1).mean() > 0.05
    # The principal axis of the turned bar gives its angle back.
    at = torch.arange(32) - 15.5
    ink = images["rotated"][:, 0]
    xx, yy, xy = ((ink * w).sum((1, 2)) for w in (at[None] ** 2, at[:, None] ** 2, at[None] * at[:, None]))
    degrees = torch.rad2deg(0.5 * torch.atan2(2 * xy, yy - xx))
    assert degrees.abs().min() > 24
    assert degrees.abs().max() < 41
    assert degrees.min() < 0 < degrees.max()


def test_two_builds_are_identical_and_leave_the_global_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = module._build()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = module._build()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_cache_hit_equals_build(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = digits(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [f"digits-{module.RECIPE}.safetensors"]
    monkeypatch.setattr(module, "_build", no_build)
    assert same(built, digits(cache))


@pytest.mark.parametrize("damage", ["empty", "garbage", "truncated", "one bit", "other tensors"])
def test_damaged_cache_is_not_believed(cache: Path, tmp_path: Path, damage: str) -> None:
    good = next(cache.iterdir()).read_bytes()
    flipped = bytearray(good)
    flipped[-1000] ^= 1
    bad = {
        "empty": b"",
        "garbage": b"\xff" * 1000,
        "truncated": good[: len(good) // 2],
        "one bit": bytes(flipped),
        "other tensors": module.save({"a": torch.zeros(1)}),
    }
    file = tmp_path / "file"
    file.write_bytes(good)
    assert module._read(file) is not None
    file.write_bytes(bad[damage])
    assert module._read(file) is None


def test_corrupt_cache_is_rebuilt(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / next(cache.iterdir()).name
    file.write_bytes(b"half a file")
    assert same(digits(tmp_path), digits(cache))
    monkeypatch.setattr(module, "_build", no_build)
    assert same(digits(tmp_path), digits(cache))


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("plain.labels"),
        lambda tensors: tensors.update(more=torch.zeros(1)),
        lambda tensors: tensors.update({"plain.labels": tensors["plain.labels"][1:].clone()}),
        lambda tensors: tensors.update({"plain.labels": tensors["plain.labels"] + 1}),
        lambda tensors: tensors.update({"plain.images": tensors["plain.images"].float()}),
    ],
    ids=["less", "more", "shorter", "eleven", "float"],
)
def test_cache_with_a_right_digest_and_other_tensors_is_not_believed(cache: Path, tmp_path: Path, change) -> None:
    name = f"digits-{module.RECIPE}.safetensors"
    tensors = module._read(cache / name)
    change(tensors)
    module._write(tmp_path / name, tensors)
    assert module._read(tmp_path / name) is None


def test_unwritable_cache_is_no_obstacle(cache: Path, tmp_path: Path) -> None:
    # A file where the folder should be stops even root, whom permissions do not.
    (tmp_path / "file").touch()
    assert same(digits(tmp_path / "file" / "dap"), digits(cache))
