"""Few elements of something computed: looked up first, then computed; the same to the last bit."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.kernel import Role
from smelt.ir.program import Program
from smelt.ir.tensorspec import TensorSpec
from smelt.simplify import look_up_first
from smelt.simplify.few_elements import _LOOKUPS, _VIEWS
from smelt.symbolic.symsize import hint
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.simplify.test_passes import assert_same, copied, recorded, simplified, targets
from tests.targets import device_type

aten = torch.ops.aten
ROWS, COLS = 40, 1000

needs_host = pytest.mark.skipif(
    device_type() == "cuda", reason="an index out of range ends what a process does on a GPU"
)


def _gathered(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
    return aten.gather.default(aten.exp.default(aten.sub.Tensor(x, most)), 1, index)


def _indexed(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
    rows = aten.arange.default(ROWS, dtype=torch.int64, device=x.device)
    column = aten.squeeze.dim(index, 1)
    return aten._unsafe_index.Tensor(aten.mul.Tensor(aten.sub.Tensor(x, most), 0.3), [rows, column])


def _selected(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
    wide = aten._to_copy.default(aten.sub.Tensor(x, most), dtype=torch.float64)
    return aten.index_select.default(wide, 1, aten.slice.Tensor(aten.squeeze.dim(index, 1), 0, 0, 3))


def _mixed(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
    chosen = aten.where.self(aten.gt.Tensor(x, most), x, aten.sum.default(most))
    return aten.index.Tensor(chosen, [aten.squeeze.dim(index, 1), aten.squeeze.dim(index, 1)])


def _viewed(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
    """As a language model's loss: cast, then rows of all sequences below each other."""
    wide = aten._to_copy.default(aten.mul.Tensor(aten.view.default(x, [4, 10, COLS]), 0.5), dtype=torch.float64)
    rows = aten.view.default(wide, [-1, COLS])
    return aten.gather.default(aten.sub.Tensor(rows, most), 1, index)


def _cut(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
    some = aten.slice.Tensor(aten.unsqueeze.default(aten.sub.Tensor(x, most), 1), 0, 3, 33)
    return aten.gather.default(aten.select.int(some, 1, 0), 1, aten.slice.Tensor(index, 0, 0, 30))


def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(ROWS, COLS), torch.randn(ROWS, 1), torch.randint(0, ROWS, (ROWS, 1))


def is_computed(node: torch.fx.Node) -> bool:
    while node.op == "call_function" and node.target in _VIEWS:
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        node = source
    return node.op != "placeholder"


@pytest.mark.parametrize("function", [_gathered, _indexed, _selected, _mixed, _viewed, _cut])
def test_what_is_computed_is_looked_up_first(function: Any) -> None:
    inputs = given()
    before = recorded(function, *inputs)
    after = look_up_first(copied(before), RewriteBudget())
    sources = [node.args[0] for node in after.graph.nodes if node.target in _LOOKUPS]
    assert not any(is_computed(source) for source in sources)
    simplified(after)
    assert_same(before, after, *inputs)


def test_nothing_changes_where_it_is_in_memory_anyhow() -> None:
    def returned(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
        y = aten.sub.Tensor(x, most)
        return y, aten.gather.default(y, 1, index)

    def multiplied(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
        y = aten.sub.Tensor(x, most)
        return aten.mm.default(y, aten.t.default(x)), aten.gather.default(y, 1, index)

    for function in (returned, multiplied):
        before = recorded(function, *given())
        assert targets(look_up_first(copied(before), RewriteBudget())) == targets(before)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, rows: x.tril()[rows],
        lambda x, rows: x.t().triu(1).index_select(1, rows),
        lambda x, rows: x.view(40, 20, 10).tril()[rows, ..., None],
    ],
)
def test_what_depends_on_where_an_element_lies_stays_there(function: Any) -> None:
    x, rows = torch.randn(40, 200), torch.tensor([3, 1, 1])
    assert torch.equal(smelt.compile(function)(x, rows), function(x, rows))


def test_nothing_changes_where_most_is_looked_at() -> None:
    def many(x: torch.Tensor, most: torch.Tensor, index: torch.Tensor) -> Any:
        return aten.gather.default(aten.sub.Tensor(x, most), 1, aten.expand.default(index, [ROWS, COLS]))

    before = recorded(many, *given())
    assert targets(look_up_first(copied(before), RewriteBudget())) == targets(before)


def test_it_takes_fuel() -> None:
    before = recorded(_gathered, *given())
    assert targets(look_up_first(copied(before), RewriteBudget(0))) == targets(before)


# Losses.


def written_by(program: Program) -> list[int]:
    parameters = [buffer for kernel in program.kernels for buffer in kernel.parameters]
    return [hint(buffer.size) for buffer in parameters if buffer.role is not Role.INPUT]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_writes_no_probabilities(dtype: torch.dtype) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target)

    specs = [TensorSpec.of(torch.randn(64, COLS, dtype=dtype)), TensorSpec.of(torch.zeros(64, dtype=torch.int64))]
    with torch.no_grad():
        program = compile_ahead(loss, specs).forward
    assert max(written_by(program)) <= 64


def test_logits_are_read_once_and_nothing_of_their_size_is_written() -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x.float().view(-1, COLS), target.view(-1))

    specs = [spec_like((4, 16, COLS), torch.bfloat16), spec_like((4, 16), torch.int64)]
    with torch.no_grad():
        program = compile_ahead(loss, specs, Options(target="sm_90")).forward
    assert max(written_by(program)) <= 64


def test_targets_are_checked_by_the_kernel_that_looks_at_them() -> None:
    specs = [spec_like((64, COLS)), spec_like((64,), torch.int64)]
    with torch.no_grad():
        program = compile_ahead(lambda x, t: F.cross_entropy(x, t), specs, Options(target="sm_90")).forward
    assert len(program.kernels) == 2


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_and_their_gradients(reduction: str, weight: bool) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, COLS, (50,))
    target[::7] = -100
    classes = torch.rand(COLS) if weight else None

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x * 2, target, classes, reduction=reduction).sum()

    x = torch.randn(50, COLS, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    want, got = loss(x), smelt.compile(loss, fullgraph=True)(y)
    want.backward()
    got.backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(y.grad, x.grad)


@needs_host
def test_a_target_out_of_range_raises_as_ever() -> None:
    compiled = smelt.compile(lambda x, t: F.cross_entropy(x, t))
    x, target = torch.randn(64, COLS), torch.randint(0, COLS, (64,))
    torch.testing.assert_close(compiled(x, target), F.cross_entropy(x, target))
    target[5] = COLS
    with pytest.raises(IndexError, match=f"Target {COLS} is out of bounds"):
        compiled(x, target)


@needs_host
def test_an_index_out_of_range_raises_as_ever() -> None:
    compiled = smelt.compile(lambda x, i: F.log_softmax(x, 1).gather(1, i))
    x, index = torch.randn(64, COLS), torch.randint(0, COLS, (64, 1))
    torch.testing.assert_close(compiled(x, index), F.log_softmax(x, 1).gather(1, index))
    index[5] = COLS
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(x, index)
