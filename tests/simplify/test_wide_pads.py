"""Padded values that are written once: the same to the last bit, and no operator reads a value to pad it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import GraphLevel, check_graph
from smelt.ir.kernel import Role
from smelt.ir.tensorspec import tensor_spec
from smelt.simplify import drop_dead, wide_pads, widen_padded
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.simplify.test_passes import assert_same, copied, recorded, targets

aten = torch.ops.aten
ROWS, COLS, WIDE = 6, 13, 16


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(wide_pads, "on_host", lambda device: False)


def _part(x: torch.Tensor) -> torch.Tensor:
    part: torch.Tensor = aten.clone.default(aten.slice.Tensor(x, 1, 0, COLS), memory_format=torch.contiguous_format)
    return part


def _loss(x: torch.Tensor, row: torch.Tensor) -> Any:
    """As the gradient of a loss: of a part of a product, and of numbers of rows."""
    each = aten.exp.default(aten.sub.Tensor(_part(x), row))
    return aten.constant_pad_nd.default(aten._to_copy.default(each, dtype=torch.float64), [0, WIDE - COLS], 0.0)


def _viewed(x: torch.Tensor, row: torch.Tensor) -> Any:
    each = aten.sub.Tensor(aten.view.default(_part(x), [2, 3, COLS]), aten.view.default(row, [2, 3, 1]))
    flat = aten.view.default(aten.mul.Tensor(each, 0.3), [ROWS, COLS])
    return aten.constant_pad_nd.default(flat, [0, WIDE - COLS], 1.5)


def _numbered(x: torch.Tensor, row: torch.Tensor) -> Any:
    numbers = aten.arange.default(COLS, dtype=torch.int64, device=torch.device("cpu"))
    hot = aten.where.self(aten.gt.Tensor(numbers, row), _part(x), aten.full.default([], 0.0, dtype=x.dtype))
    return aten.constant_pad_nd.default(hot, [0, WIDE - COLS], 0.0)


def _on_all_sides(x: torch.Tensor, row: torch.Tensor) -> Any:
    """What is padded before it is pooled: nothing that is read is as wide."""
    return aten.constant_pad_nd.default(aten.relu.default(aten.add.Tensor(x, row)), [1, 2, 3, 0], -torch.inf)


def _summed(x: torch.Tensor, row: torch.Tensor) -> Any:
    each = aten.sub.Tensor(_part(x), row)
    padded = aten.constant_pad_nd.default(each, [0, WIDE - COLS], 0.0)
    return padded, aten.sum.dim_IntList(each, [0], True), aten.sum.dim_IntList(each, [0])


@pytest.mark.parametrize("function", [_loss, _viewed, _numbered, _on_all_sides, _summed])
def test_padded_values_are_computed_padded(function: Any) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(ROWS, WIDE), torch.randn(ROWS, 1)
    before = recorded(function, *inputs)
    after = drop_dead(widen_padded(copied(before), RewriteBudget()), RewriteBudget())
    check_graph(after.graph, GraphLevel.PURE, after="wide pads")
    pads = [node.args[0] for node in after.graph.nodes if node.target is aten.constant_pad_nd.default]
    assert all(source.op == "placeholder" for source in pads)
    if function is not _on_all_sides:
        assert not pads
        sums = [node for node in after.graph.nodes if node.target is aten.sum.dim_IntList]
        assert all(tensor_spec(node.args[0]).shape == (ROWS, WIDE) for node in sums)
    assert_same(before, after, *inputs)


def test_what_is_in_the_padding_does_not_come_out() -> None:
    x, row = torch.randn(ROWS, WIDE), torch.randn(ROWS, 1)
    x[:, COLS:] = torch.nan
    before = recorded(_loss, x, row)
    assert_same(before, widen_padded(copied(before), RewriteBudget()), x, row)


def test_values_that_are_read_elsewhere_stay() -> None:
    def returned(x: torch.Tensor, row: torch.Tensor) -> Any:
        each = aten.sub.Tensor(_part(x), row)
        return each, aten.constant_pad_nd.default(each, [0, 3], 0.0)

    def cut(x: torch.Tensor, row: torch.Tensor) -> Any:
        return aten.constant_pad_nd.default(aten.sub.Tensor(x, row), [0, -3], 0.0)

    for function in (returned, cut):
        before = recorded(function, torch.randn(ROWS, WIDE), torch.randn(ROWS, 1))
        assert targets(widen_padded(copied(before), RewriteBudget())) == targets(before)
    before = recorded(_loss, torch.randn(ROWS, WIDE), torch.randn(ROWS, 1))
    assert targets(widen_padded(copied(before), RewriteBudget(0))) == targets(before)


class _Vocabulary(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.out = nn.Linear(256, words)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.out(x)
        return F.cross_entropy(logits.float(), y), logits


@pytest.mark.parametrize("words", [10_007, 10_008])
def test_a_loss_writes_two_tensors_as_large_as_the_logits(words: int) -> None:
    """Forward: what the caller gets, or a copy of it. Backward: the gradient, with its padding and the sums for
    the bias."""
    specs = [spec_like((512, 256), torch.bfloat16), spec_like((512,), torch.int64)]
    ahead = compile_ahead(_Vocabulary(words).to(torch.bfloat16), specs, Options(target="sm_90"))
    large = (10_008 * 512, words * 512)
    roles = [
        [[buffer.role for buffer in kernel.parameters if buffer.size in large] for kernel in program.kernels]
        for program in ahead.programs
    ]
    forward, backward = ([each for each in half if each] for half in roles)
    assert [each.count(Role.OUTPUT) for each in forward] == [1, 0]  # the second looks the classes up
    assert backward == [[Role.INPUT, Role.OUTPUT]]
