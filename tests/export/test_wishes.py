import time

import pytest
import torch
from torch import nn

from dap.errors import DapError
from dap.export import export_onnx
from dap.export.costs import compare_costs
from dap.export.ladder import Ladder
from dap.export.latency import compare, in_turn
from dap.export.wishes import Wish, find, parse_latency, parse_size
from dap.masks.attach import bake
from dap.models import ModelCard
from dap.structure import find_channels
from dap.structure.flops import count_flops
from export.ladders import IMAGES, structured, unstructured


@pytest.mark.parametrize(("text", "size"), [("20MB", 20e6), ("1.5kb", 1500), ("2 GiB", 2**31)])
def test_sizes(text, size):
    assert parse_size(text) == Wish("size", size)


def test_latencies():
    assert parse_latency("0.5x") == Wish("latency", 0.5, relative=True)
    assert parse_latency("30ms") == Wish("latency", 0.03)
    assert parse_latency("2s") == Wish("latency", 2.0)


@pytest.mark.parametrize("text", ["", "20", "MB", "-3MB", "0MB", "1.2.3MB", "20 bananas"])
def test_a_wrong_size_is_one_line(text):
    with pytest.raises(DapError, match=r"^[^\n]*(give it as 20MB|no number above 0)[^\n]*$"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "0.5", "fast", "0x", "1.1.1ms"])
def test_a_wrong_latency_is_one_line(text):
    with pytest.raises(DapError, match=r"^[^\n]*(0.5x|no number above 0)[^\n]*$"):
        parse_latency(text)


def test_calls_take_turns_and_the_median_counts():
    order, naps = [], iter([0, 0, 0.001, 0, 0, 0.2, 0, 0, 0.001])

    def nap():
        order.append("nap")
        time.sleep(next(naps))

    times = in_turn({"nap": nap, "rest": lambda: order.append("rest")}, repeats=3)
    assert order == (["nap"] * 3 + ["rest"] * 3) * 3
    assert 0.001 <= times["nap"] < 0.1
    with pytest.raises(DapError, match="repeats is 0"):
        in_turn({}, repeats=0)


def test_costs_are_those_of_the_products():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, images):
            return self.block(images.flatten(2).transpose(1, 2)).mean(1)

    model = Tokens()
    length, width = 16, 8
    products = length * width * (3 * width) + length * width * width + 2 * length * width * 16
    products += 2 * length * length * width  # inside of the attention
    assert count_flops(model, torch.zeros(1, 8, 4, 4)) == 2 * products
    assert model.training  # as it was
    found = compare_costs({"it": model}, {}, (8, 4, 4), threads=1)["it"]
    assert found.parameters == sum(weight.numel() for weight in model.parameters())
    assert found.torch_seconds > 0
    assert found.onnx_seconds is None


def test_threads_are_given_back():
    before = torch.get_num_threads()
    compare({"it": nn.Conv2d(3, 4, 1)}, (3, 8, 8), threads=before + 1, repeats=1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("channels", [True, False])
def test_a_size_is_met_by_the_least_that_is_cut(channels):
    ladder = structured() if channels else unstructured()

    def write(rung, path):
        path.write_bytes(b"." * sum(int((weight != 0).sum()) for weight in rung.model.parameters()))

    sizes = {share: sum(int((w != 0).sum()) for w in ladder.at(share).model.parameters()) for share in (0.5, 0.505)}
    found = find(ladder, Wish("size", sizes[0.505]), "safetensors", write, (3, 16, 16))
    assert found.share == (0.505 if sizes[0.505] < sizes[0.5] else pytest.approx(0.5, abs=0.05))
    with pytest.raises(DapError, match="no model meets the wish"):
        find(ladder, Wish("size", 10), "safetensors", write, (3, 16, 16))


def test_latencies_are_measured_beside_the_dense_model():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model, card = nn.Sequential(*layers, nn.Linear(256, 5)).eval(), ModelCard(tuple("abcde"), 16)
    channels = find_channels(model, IMAGES)
    masks = channels.masks(channels.cut(torch.rand(channels.total), 0.95))
    ladder = Ladder(model, {0.95: (bake(model, masks), masks)}, channels, fixed=True)

    def write(rung, path):
        export_onnx(rung.model, path, card, IMAGES)

    wishes = {10: 0, 0.5: 0.95}  # the small one takes less than half of the time, not ten times as long
    for limit, share in wishes.items():
        assert find(ladder, Wish("latency", limit, relative=True), "onnx", write, (3, 16, 16), 1).share == share
    with pytest.raises(DapError, match=r"not even the one that cuts 95.0%"):
        find(ladder, Wish("latency", 1e-9), "onnx", write, (3, 16, 16), 1)
