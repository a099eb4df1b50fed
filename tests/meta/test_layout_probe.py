"""How results lie of inputs that are not row by row, of operators without a rule: as they really come out."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from smelt.ir.tensorspec import TensorSpec
from smelt.meta import fake_tensor, layout_probe
from smelt.meta.fake_tensor import FakeMode, FakeTensor
from smelt.symbolic.expressions import Expression, ShapeEnv
from smelt.symbolic.symnode import as_number

aten = torch.ops.aten
CPU = torch.device("cpu")


def _layouts(*shape: int) -> Iterator[torch.Tensor]:
    """A tensor of this shape, in memory in as many ways as matter."""
    rank = len(shape)
    value = torch.rand(shape)
    yield value
    for order in itertools.permutations(range(rank)):
        yield value.permute(order).contiguous().permute([order.index(dim) for dim in range(rank)])
    yield torch.rand(*shape[:-1], shape[-1] * 2)[..., ::2]
    yield value[:1].expand(shape)
    yield value[..., :1].expand(shape)


def _fakes(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return FakeTensor(TensorSpec.of(values))
    return type(values)(map(_fakes, values)) if isinstance(values, tuple | list) else values


def assert_lies_as_real(op: Any, *args: Any) -> None:
    with FakeMode():
        said = op(*_fakes(args))
    real = op(*args)
    for one, other in zip(said, real, strict=True) if isinstance(real, tuple) else [(said, real)]:
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), args


@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (1, 4, 3, 3), (2, 4, 1, 1), (2, 1, 3, 3)])
def test_images(shape: tuple[int, ...]) -> None:
    for value in _layouts(*shape):
        assert_lies_as_real(aten.replication_pad2d.default, value, [1, 2, 0, 1])
        assert_lies_as_real(aten.max_pool2d_with_indices.default, value, [2, 2], [1, 1], [1, 1])
        if shape[1] % 2 == 0:
            assert_lies_as_real(aten.channel_shuffle.default, value, 2)


def test_two_layouts() -> None:
    for one, other in itertools.product(_layouts(2, 3, 4), repeat=2):
        assert_lies_as_real(aten.special_xlog1py.default, one, other)
        assert_lies_as_real(aten.logaddexp2.default, one, other)
        assert_lies_as_real(aten.native_dropout_backward.default, one, other > 0.5, 2.0)


def test_what_is_drawn_is_drawn_of_a_generator_of_its_own() -> None:
    values = list(_layouts(3, 4))
    before = torch.get_rng_state()
    given = torch.Generator().manual_seed(3)
    state = given.get_state()
    for value in values:
        with FakeMode():
            said = aten.poisson.default(_fakes(value), given)
            fake_tensor.forget()
            aten.poisson.default(_fakes(value), None)
        assert torch.equal(torch.get_rng_state(), before) and torch.equal(given.get_state(), state)
        assert said.stride() == aten.poisson.default(value, torch.Generator()).stride()


def test_sizes_stay_what_they_are_called() -> None:
    shape_env = ShapeEnv()
    symbols = [shape_env.symbol(f"s{dim}", size) for dim, size in enumerate((5, 6, 7))]
    n, h, w = [as_number(shape_env, Expression.of(symbol)) for symbol in symbols]
    value = FakeTensor(TensorSpec((n, 4, 2, h, w), (8 * h * w, 1, 4 * h * w, 4 * w, 4), torch.float32, CPU))
    with FakeMode():
        made = aten.replication_pad3d.default(value, [1, 1, 1, 1, 1, 1])
    room = (4 * (w + 2) * (h + 2) * 4, 1, 4 * (w + 2) * (h + 2), 4 * (w + 2), 4)
    assert [str(size) for size in made.stride()] == [str(size) for size in room]
    assert not any(fact.relation == "==" for fact in shape_env.guards), shape_env.guards


def test_what_is_too_large_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_probe, "LARGEST", 16)
    monkeypatch.setattr(layout_probe, "_run", lambda *_: pytest.fail("it was run"))
    fake_tensor.forget()
    with FakeMode():
        assert aten.special_xlog1py.default(*_fakes([torch.rand(4, 3).t()] * 2)).shape == (3, 4)
    fake_tensor.forget()


def test_what_raises_for_such_numbers_is_described_as_before() -> None:
    value = torch.rand(4, 3).t()
    with FakeMode():
        assert aten.cholesky.default(_fakes(torch.rand(3, 3).t())).shape == (3, 3)
        assert aten.take.default(_fakes(value), _fakes(torch.zeros(2, 2, dtype=torch.int64).t())).shape == (2, 2)


@pytest.mark.parametrize("op", [aten.linalg_ldl_solve.default, aten.linalg_lu_solve.default])
def test_rows_that_lapack_exchanges_are_not_made_up(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts them from one, and writes in front of a matrix where they are zero."""
    monkeypatch.setattr(layout_probe, "_run", lambda *_: pytest.fail("it was run"))
    factors, pivots, given = torch.rand(3, 3).t(), torch.ones(3, dtype=torch.int32), torch.rand(2, 3).t()
    with FakeMode():
        assert op(*_fakes((factors, pivots, given))).shape == (3, 2)
