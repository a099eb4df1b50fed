"""What programs as people write them found: breaks that need not be, and what they did other than Python does."""

import itertools
import logging
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, prune
from torch.nn.utils.rnn import pad_sequence

import smelt
from tests.capture.programs import Captured, compare

X = torch.arange(6.0).reshape(2, 3)


class Squares:
    """A sequence by its methods alone, which notes what it is asked for."""

    def __init__(self, size: int, last: int = 9) -> None:
        self.size, self.last, self.asked = size, last, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> int:
        self.asked.append(place)
        if place > self.last:
            raise IndexError(place)
        return place * place


class Turned:
    def __reversed__(self) -> Any:
        return iter([3, 2, 1])


LAYERS = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
STACK = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
TURNED = Turned()


def backwards_through_layers(x: torch.Tensor) -> Any:
    for layer in reversed(LAYERS):
        x = layer(x)
    for layer in reversed(STACK):
        x = layer(x)
    return x + sum(reversed(TURNED))  # type: ignore[arg-type]


def backwards_until(x: torch.Tensor) -> Any:
    squares = Squares(5)
    for square in reversed(squares):  # type: ignore[call-overload]
        x = x + square
        if square <= 4:
            break
    return x, squares.asked, list(reversed(Squares(5, last=2)))  # type: ignore[call-overload]


@pytest.mark.parametrize("program", [backwards_through_layers, backwards_until])
def test_sequences_are_gone_through_backwards(program: Any) -> None:
    assert not compare(program, X).breaks


def takes_iterators(x: torch.Tensor, squares: Squares, items: list[int]) -> Any:
    backwards, part = reversed(squares), itertools.islice(items, 2)  # type: ignore[call-overload]
    return x + next(backwards) + next(part), backwards, part


def test_iterators_of_the_library_that_come_out_are_its_own() -> None:
    _, backwards, part = Captured()(takes_iterators, X, Squares(4), [1, 2, 3])
    assert (type(backwards), type(part)) == (reversed, itertools.islice)
    assert (list(backwards), list(part)) == ([4, 1, 0], [2])


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_a_hook_on_a_computed_tensor_is_one_break_for_all_calls(backend: str) -> None:
    """Its Python was followed, and broke at every other line; a number that counts hooks compiled it for each."""
    seen: list[torch.Tensor] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: seen.append(gradient.sum()))
        return y.sin()

    smelt.reset()
    compiled = smelt.compile(program, backend=backend)
    for _ in range(3):
        compiled(X.clone().requires_grad_()).sum().backward()
    assert torch.equal(torch.stack(seen), torch.full((3,), float((2 * X).cos().sum())))
    assert (smelt.counters["graph_breaks"], smelt.counters["recompiles"]) == (1, 0)


LOGGER = logging.getLogger("smelt.tests.quiet")


def tells(x: torch.Tensor) -> torch.Tensor:
    LOGGER.debug("shape %s", x.shape)
    y = x * 2
    LOGGER.info("mean %s", y.mean())
    return y.sin()


def test_messages_that_nobody_takes_are_no_break(caplog: pytest.LogCaptureFixture) -> None:
    runner = Captured()
    try:
        LOGGER.setLevel(logging.WARNING)
        for _ in range(2):
            compare(tells, X, runner=runner)
        assert not runner.breaks and not caplog.records
        LOGGER.setLevel(logging.INFO)
        runner(tells, X)
        assert [(each.message, each.funcName) for each in caplog.records] == [("mean tensor(5.)", "tells")]
        assert runner.break_codes == ["B002"]
        logging.disable(logging.INFO)
        runner(tells, X)
        assert len(caplog.records) == 1
    finally:
        logging.disable(logging.NOTSET)
        LOGGER.setLevel(logging.NOTSET)


PRUNED = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
prune.l1_unstructured(PRUNED[0], "weight", amount=0.5)
prune.ln_structured(PRUNED[2], "weight", amount=1, n=2, dim=0)


def goes_through_helpers(x: torch.Tensor) -> Any:
    padded = pad_sequence([x[0], x[1, :2]], batch_first=True, padding_value=-1.0)
    size = parameters_to_vector(list(PRUNED.parameters())).norm()
    return PRUNED(x).cpu() + size, padded, PRUNED[0].weight


def quantizes(x: torch.Tensor) -> Any:
    zeros, scales = torch.zeros(3, dtype=torch.int32), torch.tensor([0.5, 1.0, 2.0])
    each = torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, 0, 7)
    whole = torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.5), zeros[0], -8, 7)
    return each + whole + torch.fake_quantize_per_tensor_affine(x, 0.25, 0, 0, 15)


@pytest.mark.parametrize("program", [goes_through_helpers, quantizes])
def test_helpers_of_torch_are_followed(program: Any) -> None:
    assert not compare(program, X.clone().requires_grad_()).breaks


WEIGHT, BIAS = torch.ones(4, 3), torch.ones(4)


@pytest.mark.parametrize("layer", [lambda x: F.linear(x, WEIGHT, BIAS), lambda x: x @ WEIGHT.t()])
@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_products_of_two_dtypes_are_refused_before_they_run(
    layer: Any, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """PyTorch's C interface prints the error, with a page of addresses, where it is called from compiled code."""
    with pytest.raises(RuntimeError) as expected:
        layer(X.double())
    smelt.reset()
    with pytest.raises(RuntimeError) as raised:
        smelt.compile(layer, backend=backend)(X.double())
    assert str(raised.value) == str(expected.value) and smelt.counters["graph_breaks"] == 1
    assert not capfd.readouterr().err


class Key:
    """Equal by number, without asking what the other is."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: Any) -> bool:
        return bool(self.number == other.number)


FIRST = Key(1)
BY_KEY = {FIRST: 2.0}
BY_PAIR = {(0, FIRST): 3.0}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * BY_KEY[FIRST],
        lambda x: x * BY_KEY[Key(1)],
        lambda x: x * BY_KEY.get(Key(1), 5.0),
        lambda x: x * BY_KEY.get(Key(2), 5.0),
        lambda x: x * (2 if Key(1) in BY_KEY else 3),
        lambda x: x * BY_PAIR[0, Key(1)],
    ],
)
def test_a_class_is_not_asked_whether_it_equals_what_stands_for_a_key(function: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(smelt.compile(function, backend="eager")(X), function(X))
