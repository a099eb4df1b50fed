"""Random small pure graphs, simplified: valid after every pass, and equal to the original bit for bit."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.base.rewrite_budget import RewriteBudget
from tests.simplify.test_passes import assert_same, copied, recorded, simplified

aten = torch.ops.aten

NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.1, 1, 0, 2)


def _unary(draw: Any, x: torch.Tensor) -> torch.Tensor:
    choice = draw(st.integers(0, 12))
    if choice < 4:
        op = (aten.neg.default, aten.clone.default, aten.detach.default, aten.sin.default)[choice]
        return op(x)  # type: ignore[no-any-return]
    if choice == 4:
        return aten._to_copy.default(x, dtype=draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])))
    if choice == 5:
        return aten.permute.default(x, draw(st.permutations(range(x.dim()))))
    if choice == 6:
        return aten.view.default(aten.clone.default(x, memory_format=torch.contiguous_format), [x.shape[1], x.shape[0]])
    if choice == 7:
        return aten.view.default(x, list(x.shape))
    if choice == 8:
        return aten.expand.default(x, list(x.shape))
    if choice == 9:
        return aten.ones_like.default(x)
    if choice == 10:
        return aten.full.default(list(x.shape), draw(st.sampled_from(NUMBERS)), dtype=x.dtype)
    if choice == 11:
        return aten.slice.Tensor(x, 0, 0, x.shape[0])
    return aten.squeeze.dim(aten.unsqueeze.default(x, 0), 0)


def _binary(draw: Any, x: torch.Tensor, y: Any) -> torch.Tensor:
    op = draw(st.sampled_from([aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor]))
    return op(x, y)  # type: ignore[no-any-return]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_simplified_graphs_compute_the_same(data: Any) -> None:
    def function(*inputs: torch.Tensor) -> Any:
        values = list(inputs)
        for _ in range(data.draw(st.integers(1, 10))):
            x = data.draw(st.sampled_from(values))
            kind = data.draw(st.integers(0, 2))
            if kind == 0:
                values.append(_unary(data.draw, x))
            elif kind == 1:
                values.append(_binary(data.draw, x, data.draw(st.sampled_from(NUMBERS))))
            else:
                fitting = [value for value in values if value.shape == x.shape]
                values.append(_binary(data.draw, x, data.draw(st.sampled_from(fitting))))
        made = values[len(inputs) :]
        return tuple(data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3)))

    special = torch.tensor([[0.0, -0.0, 1.5], [float("inf"), float("nan"), -3.0]])
    inputs = (special, torch.randn(2, 3), torch.randn(3, 2).t())
    before = recorded(function, *inputs)
    after = simplified(copied(before), RewriteBudget(data.draw(st.sampled_from([-1, -1, 1, 3]))))
    assert len(after.graph.nodes) <= len(before.graph.nodes) + 1
    assert_same(before, after, *inputs)
    _assert_no_new_sharing(before.to_module()(*inputs), after.to_module()(*inputs), inputs)


def _assert_no_new_sharing(expected: Any, found: Any, inputs: Any) -> None:
    """Results share memory with each other and with inputs only where they did."""

    def owners(results: Any) -> list[list[bool]]:
        places = [tensor.untyped_storage().data_ptr() for tensor in (*inputs, *results)]
        return [[a == b for b in places] for a in places]

    for before, after in zip(owners(expected), owners(found), strict=True):
        assert all(was or not now for was, now in zip(before, after, strict=True))
