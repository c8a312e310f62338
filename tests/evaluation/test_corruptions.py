"""Corruptions: the same ones for everybody, made once."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dap.errors import DapError
from dap.evaluation.corruptions import CORRUPTIONS, SEVERITIES, Corrupted, corrupt, on_corruptions
from dap.evaluation.pixels import InPixels

pytest.importorskip("imagecorruptions", reason="needs imagecorruptions-imaug: pip install 'dap[robustness]'")
ALL = [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]


def pictures(count: int = 3, side: int = 32) -> np.ndarray:
    """Smooth ones, as photographs are."""
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.uniform(0, 255, (count, 3, 4, 4)))
    fine = nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 255)
    return fine.permute(0, 2, 3, 1).byte().contiguous().numpy()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corruptions")
    told = []
    files = corrupt({"all": pictures()}, ALL, folder, workers=2, on_step=lambda *news: told.append(news))["all"]
    assert told[-1] == ("corrupting images", 75, 75)
    return folder, files


def test_all_fifteen_at_five_severities_change_the_images_more_and_more(made):
    _, files = made
    assert len(files) == 75
    for name in CORRUPTIONS:
        changes = [np.abs(np.load(files[name, severity]).astype(int) - pictures()).mean() for severity in SEVERITIES]
        assert changes[0] > 0, name
        assert changes[-1] > changes[0], name
        assert np.load(files[name, 1]).dtype == np.uint8


def test_what_is_there_is_not_made_again_and_anew_it_is_the_same(made, tmp_path):
    folder, files = made
    before = {file: file.stat().st_mtime_ns for file in files.values()}
    assert corrupt({"all": pictures()}, ALL, folder) == {"all": files}
    assert {file: file.stat().st_mtime_ns for file in files.values()} == before
    drawn = [(name, 3) for name in CORRUPTIONS]
    parts = {"one": pictures()[1:], "other": pictures()[::-1]}  # an image is corrupted alike, whatever it is among
    again = corrupt(parts, drawn, tmp_path, workers=2)
    for wish in drawn:
        first = np.load(files[wish])
        assert np.array_equal(np.load(again["one"][wish]), first[1:]), wish
        assert np.array_equal(np.load(again["other"][wish]), first[::-1]), wish


def test_a_damaged_file_is_made_again(made):
    folder, files = made
    wished = [("contrast", 2), ("fog", 2), ("snow", 2)]
    whole = {wish: files[wish].read_bytes() for wish in wished}
    for wish, damaged in zip(wished, (whole["contrast", 2][:-1], b"nonsense", b""), strict=True):
        files[wish].write_bytes(damaged)
    corrupt({"all": pictures()}, wished, folder, workers=1)
    assert {wish: files[wish].read_bytes() for wish in wished} == whole


def test_ctrl_c_ends_it_at_once_and_what_was_made_stays(tmp_path):
    def stop(what, number, count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corrupt({"all": pictures(400)}, ALL[:20], tmp_path, workers=2, on_step=stop)
    assert multiprocessing.active_children() == []
    kept = list(tmp_path.glob("corruptions-*/*-*.npy"))
    assert 1 <= len(kept) < 20
    assert all(np.load(file).shape == (400, 32, 32, 3) for file in kept)


def test_two_who_want_the_same_make_it_once(tmp_path):
    made = []

    def ask(number):
        told = partial(lambda who, *news: made.append(who), number)
        return corrupt({"all": pictures()}, ALL[:4], tmp_path, workers=1, on_step=told)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(ask, range(2))
    assert one == other
    assert sorted(made) in ([0] * 4, [1] * 4)


def test_a_full_disk_is_noticed_before(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(DapError, match=r"need 9,216 bytes in .* where 1,000 are free: take fewer images"):
        corrupt({"all": pictures()}, [("fog", 1)], tmp_path)


class Brightness(nn.Module):
    """Bright images are of class 1."""

    def forward(self, inputs):
        bright = inputs.mean((1, 2, 3)) - 0.5
        return torch.stack([-bright, bright], 1)


def test_models_are_scored_on_the_same_images(tmp_path):
    pixels = torch.cat([torch.full((4, 3, 32, 32), 0.2), torch.full((4, 3, 32, 32), 0.8)])
    labels = torch.tensor([0] * 4 + [1] * 4)
    halves = [TensorDataset(pixels[part], labels[part]) for part in (slice(4), slice(4, 8))]
    models = {
        "right": InPixels(Brightness(), (0.0,) * 3, (1.0,) * 3),
        "blind": InPixels(Zero(), (0.0,) * 3, (1.0,) * 3),
    }
    found = on_corruptions(
        models,
        {"dim": halves[0], "bright": halves[1]},
        corruptions=("gaussian_noise", "brightness"),
        severities=(1, 5),
        folder=tmp_path,
        workers=1,
    )
    assert [found["right"][domain].clean for domain in ("dim", "bright")] == [1.0, 1.0]
    assert [found["blind"][domain].clean for domain in ("dim", "bright")] == [1.0, 0.0]
    assert found["right"]["dim"].accuracy["gaussian_noise"] == {1: 1.0, 5: 1.0}
    assert found["right"]["dim"].accuracy["brightness"][5] == 0.0  # 0.2 + 0.5 is bright
    assert found["right"]["bright"].accuracy["brightness"] == {1: 1.0, 5: 1.0}
    assert found["blind"]["bright"].mean == 0.0
    dim = found["right"]["dim"]
    assert dim.mean == pytest.approx((1 + 1 + dim.accuracy["brightness"][1] + 0.0) / 4)


class Zero(nn.Module):
    def forward(self, inputs):
        return torch.tensor([1.0, 0.0]).expand(len(inputs), 2)


def test_relative_error_by_hand():
    dense = Corrupted(1.0, {"fog": {1: 0.8, 2: 0.6}, "snow": {1: 0.5, 2: 0.5}})
    sparse = Corrupted(1.0, {"fog": {1: 0.9, 2: 0.8}, "snow": {1: 0.5, 2: 0.0}})
    assert sparse.relative_error(dense) == pytest.approx((0.3 + 1.5) / (0.6 + 1.0))
    assert dense.relative_error(dense) == 1
    better = Corrupted(1.0, {"fog": {1: 1.0, 2: 1.0}, "snow": {1: 0.5, 2: 0.5}})  # no mistake in fog
    assert better.relative_error(better) == 1
    assert sparse.relative_error(better) == pytest.approx(1.8)
    perfect = Corrupted(1.0, {"fog": {1: 1.0}})
    assert perfect.relative_error(perfect) is None


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(DapError, match="images of 16 pixels are too small: corruptions need at least 32"):
        corrupt({"all": pictures(side=16)}, [("fog", 1)], tmp_path)
    model = {"m": InPixels(Zero(), (0.0,) * 3, (1.0,) * 3)}
    data = TensorDataset(torch.rand(2, 3, 32, 32), torch.zeros(2, dtype=torch.long))
    with pytest.raises(DapError, match="there is no corruption 'rain'; choose among gaussian_noise"):
        on_corruptions(model, {"all": data}, corruptions=("rain",))
