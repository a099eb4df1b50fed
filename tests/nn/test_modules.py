"""Every public class of `torch.nn`, compiled and not: outputs, gradients, buffers afterwards, and breaks."""

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.events import collect
from smelt.base.options import config
from smelt.capture import BreakRecord
from tests.nn.modules import EXAMPLES, NOT_CALLABLE, RECURRENT, Example
from tests.ops_db.accuracy import off
from tests.targets import random_states

RUNS = 32


@pytest.fixture(autouse=True)
def raise_errors() -> Iterator[None]:
    config.suppress_errors = False
    yield
    config.suppress_errors = True


def public_classes() -> set[str]:
    """What `torch.nn` and `torch.nn.modules` offer by name."""
    modules = {name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)}
    return modules | set(nn.modules.__all__)


def fresh_leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def step(module: nn.Module, run: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Outputs, input gradients, parameter gradients and buffers of a forward and a backward, as one flat list."""
    fresh = tree_map(fresh_leaf, inputs)
    leaves = [value for value in tree_flatten(fresh)[0] if isinstance(value, torch.Tensor) and value.requires_grad]
    # A write to a leaf is an error, in place or not: what the module is called with is a copy of it.
    given = tree_map(
        lambda value: value * 1 if isinstance(value, torch.Tensor) and value.requires_grad else value, fresh
    )
    torch.manual_seed(3)
    outputs = tree_flatten(run(*given))[0]
    differentiable = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
    raised = ""
    if differentiable:
        torch.manual_seed(4)
        try:
            torch.autograd.backward(differentiable, [drawn_like(value) for value in differentiable])
        except RuntimeError as error:  # cuDNN's recurrent layers have a backward in training alone
            raised = str(error).splitlines()[0]
    gradients = [value.grad for value in (*leaves, *module.parameters())]
    written = tree_flatten(given)[0]
    buffers = [value.clone() for value in module.buffers()]
    return [*random_states(), raised, *outputs, *gradients, *buffers, *written]


def drawn_like(value: torch.Tensor) -> torch.Tensor:
    """Normal numbers in the shape of a tensor, the same ones in float32 and in float64."""
    return torch.randn_like(value, dtype=torch.float32).to(value.dtype)


def same(one: Any, other: Any, exact: bool) -> None:
    assert type(one) is type(other)
    if not isinstance(one, torch.Tensor):
        assert one == other
        return
    assert (one.dtype, one.layout, one.requires_grad) == (other.dtype, other.layout, other.requires_grad)
    if one.layout is torch.sparse_coo and exact:  # in dense form equal indices are added up, in any order on a GPU
        assert one.is_coalesced() == other.is_coalesced()
        same(one.detach()._indices(), other.detach()._indices(), exact)
        one, other = one.detach()._values(), other.detach()._values()
    elif one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    one, other = one.detach(), other.detach()
    if exact:
        torch.testing.assert_close(one, other, equal_nan=True, check_stride=True, rtol=0, atol=0)
    else:
        torch.testing.assert_close(one, other, equal_nan=True)


def build(example: Example, training: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return example.build().train(training), example.inputs()


def eager_step(example: Example, training: bool, number: int, dtype: torch.dtype | None = None) -> list[Any]:
    """What PyTorch gives in the step of that number, from the start; in another type if one is named."""
    module, inputs = build(example, training)
    if dtype is not None:
        module, inputs = module.to(dtype), tree_map(lambda value: in_type(value, dtype), inputs)
    for _ in range(number + 1):
        module.zero_grad(set_to_none=True)
        found = step(module, module, inputs)
    return found


def in_type(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def differs_from_itself(example: Example, training: bool, number: int, place: int, wanted: torch.Tensor) -> list[Any]:
    """That result of eager steps from equal seeds, if not all are equal: some of CUDA's backwards add up in any order.
    Empty if all are equal."""
    runs = [eager_step(example, training, number)[place] for _ in range(RUNS)]
    return [] if all(torch.equal(wanted, each) for each in runs) else runs


def compare(example: Example, training: bool, number: int, found: list[Any], wanted: list[Any], exact: bool) -> None:
    """Every result as eager's: bit for bit if `exact`, but what eager itself does not give twice. That is compared with
    float64, and may be off by twice as much as the worst of eager's runs, and 4 ulp."""
    assert len(found) == len(wanted)
    for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        try:
            same(mine, theirs, exact)
        except AssertionError:
            strided = isinstance(theirs, torch.Tensor) and theirs.layout is torch.strided
            if not exact or not strided or mine.shape != theirs.shape or mine.stride() != theirs.stride():
                raise
            runs = differs_from_itself(example, training, number, place, theirs)
            if not runs:
                raise
            true = eager_step(example, training, number, torch.float64)[place]
            errors = torch.stack([(each.detach().double() - true.detach()).abs() for each in (theirs, *runs)])
            assert not off(mine.detach(), theirs.detach(), true, errors.amax(0))


def check(example: Example, training: bool, backend: str) -> None:
    """Two steps of each side from equal seeds. The second compiled one must need nothing new."""
    eager, inputs = build(example, training)
    module, _ = build(example, training)
    compiled = smelt.compile(module, backend=backend)
    for attempt in range(2):
        for one in (eager, module):
            one.zero_grad(set_to_none=True)
        wanted = step(eager, eager, inputs)
        with collect() as events:
            found = step(module, compiled, inputs)
        compare(example, training, attempt, found, wanted, exact=backend == "eager")
        if attempt == 0:
            breaks = [event.subject for event in events if isinstance(event.subject, BreakRecord)]
            known = example.training if training else example.evaluation
            assert len(breaks) == known, "\n".join(map(str, breaks))
        elif example.settles:
            assert not [event.text for event in events if event.channel in ("breaks", "graph", "recompiles")]


CASES = [
    pytest.param(row, training, id=f"{row.name}-{'training' if training else 'evaluation'}")
    for row in EXAMPLES
    for training in row.modes
]


# Capture is the same for both; under `eager` every bit is PyTorch's, and that is asked by `make test-long`.
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "llvm"])
@pytest.mark.parametrize(("row", "training"), CASES)
def test_as_eager(row: Example, training: bool, backend: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmeltWarning)
        warnings.filterwarnings("ignore", "SM020: a graph falls back to eager.*a dimension of length 12")  # sparse bags
        check(row, training, backend)


@pytest.mark.parametrize(("row", "training"), [case for case in CASES if case.values[0] in RECURRENT])
def test_recurrent_through_autograd(row: Example, training: bool) -> None:
    """oneDNN's LSTM keeps a workspace for its backward only where autograd itself records the call."""
    check(row, training, "aot_eager")


def test_every_public_class_is_here() -> None:
    """A class that PyTorch adds, or one taken out of the table, shows here."""
    covered = {row.covers for row in EXAMPLES if "." not in row.covers}
    assert covered | set(NOT_CALLABLE) == public_classes()
    assert not covered & set(NOT_CALLABLE)


def test_every_known_break_is_explained() -> None:
    assert all(bool(row.why) == bool(row.training or row.evaluation) for row in EXAMPLES)
    assert len({row.name for row in EXAMPLES}) == len(EXAMPLES)


class Unsteady(nn.Module):
    """Every call is off by a unit in the last place, one way or the other, as sums in any order are."""

    calls = itertools.count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 2.0**-23 * (next(self.calls) % 2)) if self.training else x * 1


@pytest.mark.parametrize(("training", "factor", "passes"), [
    (True, 1 + 2.0**-22, True), (True, 1 + 2.0**-12, False), (False, 1 + 2.0**-22, False),
])  # fmt: skip
def test_only_what_eager_does_not_give_twice_may_differ(training: bool, factor: float, passes: bool) -> None:
    row = Example("Identity", Unsteady, lambda: (torch.linspace(1, 2, 9),))
    wanted = eager_step(row, training, 0)
    found = [each * factor if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in wanted]
    found[-1] = wanted[-1]  # what it was given
    with contextlib.nullcontext() if passes else pytest.raises(AssertionError):
        compare(row, training, 0, found, wanted, exact=True)
