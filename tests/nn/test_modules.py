"""Every public class of `torch.nn`, compiled and not: outputs, gradients, buffers afterwards, and breaks."""

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
from tests.targets import random_states


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
    if differentiable:
        torch.manual_seed(4)
        torch.autograd.backward(differentiable, [torch.randn_like(value) for value in differentiable])
    gradients = [value.grad for value in (*leaves, *module.parameters())]
    written = tree_flatten(given)[0]
    buffers = [value.clone() for value in module.buffers()]
    return [*random_states(), *outputs, *gradients, *buffers, *written]


def same(one: Any, other: Any, exact: bool) -> None:
    assert type(one) is type(other)
    if not isinstance(one, torch.Tensor):
        assert one == other
        return
    assert (one.dtype, one.layout, one.requires_grad) == (other.dtype, other.layout, other.requires_grad)
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    one, other = one.detach(), other.detach()
    if exact:
        torch.testing.assert_close(one, other, equal_nan=True, check_stride=True, rtol=0, atol=0)
    else:
        torch.testing.assert_close(one, other, equal_nan=True)


def build(example: Example, training: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return example.build().train(training), example.inputs()


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
        assert len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            same(mine, theirs, exact=backend == "eager")
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
