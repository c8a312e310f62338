from pathlib import Path

import numpy as np
import pytest
import torch
from small_suites import make_folder
from torch.utils.data import DataLoader

from dap.data import Images, load_suite, split_suite
from dap.data.decoding import decode
from dap.models.torchvision_repair import repair_torchvision

repair_torchvision()
from torchvision import transforms  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "suite", {"photo": {"cat": 6, "dog": 4}})


@pytest.fixture
def photo(folder: Path, tmp_path: Path) -> Images:
    images = load_suite(folder, pixels=24, cache=tmp_path / "cache").domains["photo"]
    assert isinstance(images, Images)
    return images


def seeds(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def eval_transform(pixels: int) -> transforms.Compose:
    normalise = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return transforms.Compose([transforms.Resize((pixels, pixels)), transforms.ToTensor(), normalise])


def test_items_and_batches(photo: Images) -> None:
    assert len(photo) == 10
    inputs, labels = photo.batch(torch.tensor([7, 0, 7]), None)
    assert inputs.shape == (3, 3, 24, 24)
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert labels.tolist() == [1, 0, 1]
    assert torch.equal(inputs[0], inputs[2])
    image, label = photo[7]
    assert torch.equal(image, inputs[0])
    assert label == 1
    assert torch.equal(photo[-3][0], image)
    with pytest.raises(IndexError):
        photo[10]
    assert len(list(photo)) == 10  # pyright: ignore[reportArgumentType]


def test_eval_is_domainbeds(folder: Path, photo: Images) -> None:
    theirs = ImageFolder(str(folder / "photo"), eval_transform(24))
    for index in range(10):
        torch.testing.assert_close(photo[index][0], theirs[index][0], atol=2e-6, rtol=0)


def test_eval_on_real_images_is_domainbeds(shared: Path, tmp_path: Path) -> None:
    few = tmp_path / "PACS" / "photo" / "dog"
    few.parent.mkdir(parents=True)
    few.symlink_to(shared / "data" / "PACS" / "photo" / "dog")
    theirs = ImageFolder(str(few.parent), eval_transform(112))
    ours = load_suite(tmp_path / "PACS", pixels=112, cache=False).domains["photo"]
    inputs, labels = ours.batch(torch.arange(0, 180, 20))  # pyright: ignore[reportAttributeAccessIssue]
    for place, index in enumerate(range(0, 180, 20)):
        image, label = theirs[index]
        torch.testing.assert_close(inputs[place], image, atol=2e-6, rtol=0)
        assert labels[place] == label


def test_labels_names_and_groups(photo: Images) -> None:
    assert photo.labels.tolist() == [0] * 6 + [1] * 4
    assert photo.names[6] == "photo/dog/0.png"
    assert photo.groups is None
    assert photo.skipped == []


def test_images_at_some_rows(photo: Images) -> None:
    part = photo.with_listed(np.array([9, 2, 5]))
    assert part.names == [photo.names[index] for index in (9, 2, 5)]
    assert part.labels.tolist() == [1, 0, 0]
    assert torch.equal(part[1][0], photo[2][0])
    assert torch.equal(part.augmented().batch(torch.tensor([0]), seeds(4))[0],
                       photo.augmented().batch(torch.tensor([9]), seeds(4))[0])  # fmt: skip


def test_augmentation_is_a_function_of_the_seed(photo: Images) -> None:
    train = photo.augmented()
    indices = torch.tensor([4, 1, 8])
    whole, labels = train.batch(indices, seeds(1, 2, 3))
    for place in range(3):
        alone, label = train.batch(indices[place : place + 1], seeds(place + 1))
        assert torch.equal(alone[0], whole[place])
        assert label == labels[place]
    assert not torch.equal(train.batch(indices, seeds(1, 2, 4))[0][2], whole[2])
    assert not torch.equal(photo.batch(indices)[0], whole)
    assert torch.equal(photo.batch(indices, seeds(1, 2, 3))[0], photo.batch(indices)[0])


def test_without_seeds_torchs_generator_decides(photo: Images) -> None:
    train = photo.augmented()
    torch.manual_seed(0)
    first, second = train[3][0], train[3][0]
    torch.manual_seed(0)
    assert torch.equal(train[3][0], first)
    assert not torch.equal(first, second)


def test_with_and_without_a_cache_alike(folder: Path, photo: Images) -> None:
    plain = load_suite(folder, pixels=24, cache=False).domains["photo"]
    assert isinstance(plain, Images)
    everything = torch.arange(10)
    assert torch.equal(plain.batch(everything)[0], photo.batch(everything)[0])
    drawn = np.arange(10, dtype=np.uint64)
    assert torch.equal(plain.augmented().batch(everything, drawn)[0], photo.augmented().batch(everything, drawn)[0])


def test_several_threads_give_the_same(folder: Path, photo: Images) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        plain = load_suite(folder, pixels=24, cache=False).domains["photo"]
        assert torch.equal(plain.batch(torch.arange(10))[0], photo.batch(torch.arange(10))[0])  # pyright: ignore
    finally:
        torch.set_num_threads(threads)


def test_a_loader_with_workers(photo: Images) -> None:
    loaded = torch.cat([inputs for inputs, _ in DataLoader(photo, 4, num_workers=2)])
    assert torch.equal(loaded, photo.batch(torch.arange(10))[0])


def test_the_original_size_shapes_the_crop(photo: Images, folder: Path) -> None:
    """Crops are drawn in the original's 20 × 14 and not in the square."""
    images, sizes = photo._store.read(np.arange(10))
    assert sizes.tolist() == [[14, 20]] * 10
    assert np.array_equal(images[0], decode(folder / "photo/cat/0.png", 24)[0])


def test_real_images_in_full(shared: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    for domain in ("photo", "sketch"):
        for name in ("dog", "horse"):
            (few / domain / name).mkdir(parents=True)
            for file in sorted((shared / "data" / "PACS" / domain / name).iterdir())[:10]:
                (few / domain / name / file.name).symlink_to(file)
    suite = load_suite(few, pixels=112, cache=tmp_path / "cache")
    train, held_out = split_suite(suite, 0)["photo"]
    assert (len(train), len(held_out)) == (16, 4)  # pyright: ignore[reportArgumentType]
    inputs, _ = train.augmented().batch(torch.arange(16))  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.isfinite(inputs).all()
    assert -2.2 < inputs.min() < -1
    assert 1 < inputs.max() < 2.7
