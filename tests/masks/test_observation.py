from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import MODELS, make_batches, make_model
from dap.masks.attach import maskable_weights
from dap.masks.observation import Product, observe, order_of_use

IMAGES = make_batches()["domain 0"][0]


@pytest.mark.parametrize("kind", MODELS)
def test_every_product_is_what_it_says(kind):
    """Inputs and weight give the output again, whoever made the product."""
    model = make_model(kind).eval()
    weights = {name: weight.detach() for name, weight in maskable_weights(model).items()}
    products: list[Product] = []
    with observe(weights, products.append):
        model(IMAGES)
    assert {product.name for product in products} == set(weights)
    for product in products:
        weight = weights[product.name][product.rows]
        if product.convolution is None:
            again = product.inputs @ weight.T
        else:
            again = torch.ops.aten.convolution(product.inputs, weight, None, **product.convolution)
        gap = product.output.reshape(again.shape) - again
        bias = gap.mean([0, *range(2, gap.ndim)], keepdim=True)  # all that is missing
        torch.testing.assert_close(gap, bias.expand_as(gap), rtol=1e-4, atol=1e-5)


def test_what_a_tied_weight_does_is_seen_twice():
    model = make_model("tied")
    weights = {name: weight.detach() for name, weight in maskable_weights(model).items()}
    names: list[str] = []
    with observe(weights, lambda product: names.append(product.name)):
        model(IMAGES)
    assert names == ["stem.weight", "first.weight", "first.weight", "head.weight"]


class Backwards(nn.Module):
    """The head is registered first, one layer is never used, and one is used through a function."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.unused = nn.Linear(4, 4)
        self.body = nn.Linear(192, 4, bias=False)

    def forward(self, images):
        return self.head(F.linear(images.flatten(1), self.body.weight * 1.0))


def test_the_order_is_that_of_use():
    model = Backwards()
    assert order_of_use(model, maskable_weights(model), IMAGES) == ["body.weight", "head.weight"]


def test_a_cross_attention_uses_its_packed_projection_in_parts():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    weights = {name: weight.detach() for name, weight in maskable_weights(attention).items()}
    rows: list[slice] = []
    with observe(weights, lambda product: rows.append(product.rows) if "in_proj" in product.name else None):
        attention(torch.randn(2, 3, 8), *[torch.randn(2, 5, 8)] * 2)
    seen = sorted((part.start, part.stop) for part in rows)
    assert seen[0][0] == 0
    assert seen[-1][1] == 24
    assert all(one[1] == other[0] for one, other in pairwise(seen))
    assert torch.backends.mha.get_fastpath_enabled()
