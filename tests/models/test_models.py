"""Hugging Face models through `smelt.compile(backend="eager")`: loss, outputs and every gradient as eager has them.

A few run always; the rest are marked `slow` (`make test-models`).
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.events import collect
from smelt.base.options import config
from smelt.capture import BreakRecord
from tests import targets
from tests.models.architectures import ARCHITECTURES, Architecture

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def raise_errors() -> Iterator[None]:
    config.suppress_errors = False
    yield
    config.suppress_errors = True


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """On a GPU eager's gradients may else differ from themselves, by the order in which threads add."""
    torch.use_deterministic_algorithms(targets.chosen[0] != targets.HOST, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def as_when_compiled() -> Iterator[None]:
    """Models may ask whether they are compiled, and attend by a mask then where they else say `is_causal`. The same
    sums in another order are not what is tested, so eager is told the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "_is_compiling_flag", True)
        yield


def outcome(
    model: torch.nn.Module, run: Callable[..., Any], inputs: dict[str, Any]
) -> tuple[Any, list[Any], list[Any]]:
    """Output, its tensors with the loss first, and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    output = run(**inputs)
    output.loss.backward()
    tensors = [output.loss] + [value for value in output.to_tuple() if isinstance(value, torch.Tensor)]
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    return output, [value.detach() for value in tensors], gradients


def check(row: Architecture, training: bool) -> list[BreakRecord]:
    """Two compiled calls against eager; the breaks of the first. The second must need nothing new."""
    torch.manual_seed(0)
    model, inputs = row.build(transformers).train(training), row.inputs()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with contextlib.nullcontext() if row.inexact else as_when_compiled():
        eager, tensors, gradients = outcome(model, model, inputs)
    compiled = smelt.compile(model, backend="eager")
    found: list[list[Any]] = []
    for _ in range(2):
        model.load_state_dict(state)
        with collect() as events:
            mine, my_tensors, my_gradients = outcome(model, compiled, inputs)
        assert type(mine) is type(eager) and list(mine) == list(eager)
        for one, other in zip(my_tensors + my_gradients, tensors + gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None and row.inexact:
                torch.testing.assert_close(one, other)
            elif one is not None:
                assert torch.equal(one, other)
        found.append([event for event in events if event.channel in ("breaks", "recompiles")])
    if not row.why:
        assert not found[1], [event.text for event in found[1]]
    return [event.subject for event in found[0] if isinstance(event.subject, BreakRecord)]


ROWS = [pytest.param(row, id=row.name, marks=() if row.fast else pytest.mark.slow) for row in ARCHITECTURES]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("row", ROWS)
def test_as_eager(row: Architecture, training: bool) -> None:
    known = row.training if training else row.evaluation
    if known is None:
        pytest.skip(row.why)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmeltWarning)
        breaks = check(row, training)
    assert len(breaks) == known, "\n".join(map(str, breaks))


def test_every_known_break_is_explained() -> None:
    assert all(row.why for row in ARCHITECTURES if row.training != 0 or row.evaluation != 0)
    assert len({row.name for row in ARCHITECTURES}) == len(ARCHITECTURES)


def test_a_cache_from_outside_grows_as_in_eager() -> None:
    row = next(row for row in ARCHITECTURES if row.name == "llama")
    torch.manual_seed(0)
    model = row.build(transformers).eval()
    start = torch.randint(3, 50, (1, 5))

    def decode(run: Callable[..., Any]) -> tuple[list[torch.Tensor], Any]:
        cache, ids, found = transformers.DynamicCache(config=model.config), start, []
        with torch.no_grad():
            for _ in range(4):
                output = run(input_ids=ids, past_key_values=cache, use_cache=True)
                assert output.past_key_values is cache
                found.append(output.logits[:, -1])
                ids = found[-1].argmax(-1, keepdim=True)
        return found, cache

    with as_when_compiled():
        eager, expected = decode(model)
    with collect() as events:
        mine, cache = decode(smelt.compile(model, backend="eager"))
    assert not [event.text for event in events if event.channel == "breaks"]
    assert all(map(torch.equal, mine, eager))
    for one, other in zip(cache.layers, expected.layers, strict=True):
        assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
