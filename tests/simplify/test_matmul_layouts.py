"""Copies round matrix products: none turns rows into columns where the product could have read or written the other."""

from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import tensor_spec
from tests.simplify.test_passes import assert_same, copied, recorded, simplified, targets

aten = torch.ops.aten
HEADS = torch.randn(2, 5, 3, 4)  # texts, words, heads, width


def turning_copies(traced: Traced) -> list[str]:
    """Copies whose source lies otherwise along the innermost dim."""
    found = []
    for node in traced.graph.nodes:
        if node.target is aten.clone.default:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            found += [node.name] if tensor_spec(source).stride[-1] != 1 else []
    return found


def assert_close(before: Traced, after: Traced, *inputs: torch.Tensor) -> None:
    """Strides and all; a product of turned matrices may round otherwise."""
    for want, have in zip(before.to_module()(*inputs), after.to_module()(*inputs), strict=True):
        assert (want.shape, want.stride(), want.dtype) == (have.shape, have.stride(), have.dtype)
        torch.testing.assert_close(want, have)


def _scores(query: torch.Tensor, key: torch.Tensor) -> Any:
    """Attention as its math is written: keys are scaled and copied with their width before their words."""
    by_head = aten.clone.default(aten.permute.default(query, [0, 2, 1, 3]), memory_format=torch.contiguous_format)
    columns = aten.mul.Tensor(aten.permute.default(key, [0, 2, 3, 1]), 0.5)
    columns = aten.clone.default(columns, memory_format=torch.contiguous_format)
    return aten.bmm.default(aten.view.default(by_head, [6, 5, 4]), aten.view.default(columns, [6, 4, 5]))


def test_a_copy_for_a_product_is_straight() -> None:
    before = recorded(_scores, HEADS, HEADS)
    after = simplified(copied(before))
    assert len(turning_copies(before)) == 1 and not turning_copies(after)
    assert_close(before, after, HEADS, HEADS)


def _gradient(a: torch.Tensor, b: torch.Tensor) -> Any:
    """The other way round: a product with width before words, scaled, put back in the order of the texts."""
    found = aten.mul.Tensor(aten.view.default(aten.bmm.default(a, b), [2, 3, 4, 5]), 0.5)
    turned = aten.view.default(aten.permute.default(found, [0, 3, 1, 2]), [2, 5, 12])
    return aten.exp.default(aten.clone.default(turned, memory_format=torch.contiguous_format))


def test_a_product_is_asked_for_the_way_it_is_copied() -> None:
    inputs = torch.randn(6, 4, 7), torch.randn(6, 7, 5)
    before = recorded(_gradient, *inputs)
    after = simplified(copied(before))
    assert len(turning_copies(before)) == 1 and not turning_copies(after)
    assert targets(after).count(aten.clone.default) == 1
    assert_close(before, after, *inputs)


def test_a_turned_product_alone_needs_no_copy() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        turned = aten.permute.default(aten.mm.default(a, b), [1, 0])
        return aten.exp.default(aten.clone.default(turned, memory_format=torch.contiguous_format))

    inputs = torch.randn(4, 3), torch.randn(3, 5)
    before = recorded(function, *inputs)
    after = simplified(copied(before))
    assert aten.clone.default not in targets(after)
    assert_close(before, after, *inputs)


def test_what_others_see_stays_as_it_is() -> None:
    """A copy that is returned, or read by more than products, keeps its layout; so does a product."""

    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        returned = aten.clone.default(aten.permute.default(a, [1, 0]), memory_format=torch.contiguous_format)
        read = aten.clone.default(aten.permute.default(b, [1, 0]), memory_format=torch.contiguous_format)
        product = aten.mm.default(returned, aten.permute.default(read, [1, 0]))
        turned = aten.clone.default(aten.permute.default(product, [1, 0]), memory_format=torch.contiguous_format)
        return returned, aten.exp.default(read), product, aten.exp.default(turned)

    inputs = torch.randn(4, 3), torch.randn(4, 6)
    before = recorded(function, *inputs)
    after = simplified(copied(before))
    assert turning_copies(after) == turning_copies(before)
    assert_same(before, after, *inputs)


def test_without_fuel_nothing_turns_and_nothing_is_left_behind() -> None:
    before = recorded(_scores, HEADS, HEADS)
    after = simplified(copied(before), RewriteBudget(0))
    assert len(after.graph.nodes) == len(before.graph.nodes)


def test_padding_by_nothing_is_nothing() -> None:
    x = torch.randn(2, 3, 4)

    def function(x: torch.Tensor) -> Any:
        return aten.exp.default(aten.constant_pad_nd.default(x, [0, 0, 0, 0])), aten.constant_pad_nd.default(x, [0, 0])

    before = recorded(function, x)
    after = simplified(copied(before))
    # The second is a result: it must not be the caller's own memory.
    assert targets(after).count(aten.constant_pad_nd.default) == 1
    assert_same(before, after, x)
