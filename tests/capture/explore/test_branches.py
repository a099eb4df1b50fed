"""Branches on tensors, explored both ways, against eager on inputs that take each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from smelt.base.errors import SmeltError
from smelt.capture.explore.explore import explore
from smelt.ir.artifact.machine import Branch
from tests.capture.explore import programs
from tests.capture.explore.comparing import explored, same
from tests.capture.explore.machine_reference import Raised, Reference, Refused

UP, DOWN = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, -3.0])
MIXED, ZERO = torch.tensor([4.0, -2.0, 1.0]), torch.zeros(3)
ALL = [(UP,), (DOWN,), (MIXED,), (ZERO,)]


class UseRelu(nn.Module):
    """The seed's own example of what tracing loses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, use_relu: bool) -> torch.Tensor:
        x = self.conv(x)
        if use_relu:
            x = torch.relu(x)
        return x


def test_a_python_bool_keeps_both_variants() -> None:
    model = UseRelu().eval()
    image = torch.randn(1, 3, 8, 8)
    machine = explored(model, (image, True), (image, False))
    assert len(machine.machine.states[0].variants) == 2


class UseDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.dropout, self.layer2 = nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, use_dropout: bool = True) -> torch.Tensor:
        x = self.layer1(x)
        if use_dropout:
            x = self.dropout(x)
        return self.layer2(x)


def test_the_seeds_dropout_example() -> None:
    explored(UseDropout().eval(), (UP, True), (DOWN, False))


def sign(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 1


def nested(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        if x[0] > 2:
            x = x + 10
        else:
            x = x - 10
            x = x.abs()
        x = x * 3
    elif x[1] < -1:
        x = x / 2
    return x.relu()


def early(x: torch.Tensor) -> Any:
    if (x == 0).all():
        return None
    if x.max() > 3:
        return {"big": x.max(), "name": "max"}
    y = x.exp()
    return y, [x, 1.5]


def both(x: torch.Tensor) -> torch.Tensor:
    if x[0] > 0 and x[1] > 0:
        return x + 1
    if x[0] > 2 or x[2] < -2:
        return x + 2
    if not (x[0] > 0):
        return x + 3
    return x + 4


def kept(x: torch.Tensor) -> torch.Tensor:
    y = x.sum() or x.max() + 5  # the value itself
    z = x[0] and x[1]
    return y + z


def truths(x: torch.Tensor) -> torch.Tensor:
    flag = bool(x.sum() > 0)
    other = not x[0]
    y = x * 2
    if flag:
        y = y + 1
    if other:
        y = y - 7
    return y


def ternary(x: torch.Tensor) -> torch.Tensor:
    return (x if x.mean() > 0 else -x) + (1 if x[0] > 1 else 2)


def chained(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if 0 < x.sum() < 10 else x


def numbers(x: torch.Tensor) -> Any:
    n = int(x.sum())
    if n > 3:
        return x * n, n
    if n == 0:
        return x - n, "none"
    mean = x.mean().item()
    if mean < -1.5:
        return x * mean, mean * 2 - n
    return x / 3, -mean


@pytest.mark.parametrize(
    "function", [sign, nested, early, both, kept, truths, ternary, chained, numbers], ids=lambda f: f.__name__
)
def test_branches(function: Callable[..., Any]) -> None:
    explored(function, *ALL)


class Gate(nn.Module):
    """A branch inside a call inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def choose(self, x: torch.Tensor) -> nn.Module:
        return self.left if x.sum() > 0 else self.right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inner(x))
        return self.choose(hidden)(hidden) + x


def test_a_branch_that_chooses_a_module() -> None:
    torch.manual_seed(0)
    machine = explored(Gate(), *ALL)
    assert any(isinstance(variant.next, Branch) for state in machine.machine.states for variant in state.variants)


def test_exceptions() -> None:
    machine = explored(programs.checked, (MIXED,), (ZERO,))
    with pytest.raises(Raised, match="AssertionError: too small"):
        machine(DOWN)
    with pytest.raises(Raised, match="ValueError: too large: 3"):
        machine(UP)
    with pytest.raises(Raised, match="IndexError: not … of …"):
        machine(UP / 1.5)


def handled(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.sum() > 0:
            raise ValueError("up")
        y = x + 1
    except ValueError:
        y = x - 1
    finally:
        x = x * 2
    return x + y


def test_an_exception_that_is_handled() -> None:
    explored(handled, *ALL)


def by_mode(x: torch.Tensor, mode: str, scale: float, times: int) -> torch.Tensor:
    if mode == "double":
        x = x * 2
    elif mode == "half":
        x = x / 2
    if scale > 1:
        x = x + scale
    for _ in range(times):
        x = x * scale
    return x


def test_python_arguments() -> None:
    machine = explored(
        by_mode,
        (UP, "double", 0.5, 3),
        (UP, "half", 1.5, 0),
        (DOWN, "half", 2.0, 50),
        (DOWN, "double", 1.0, 1),
        choices={"mode": ["double", "half"]},
    )
    with pytest.raises(Refused):
        machine(UP, "other", 0.5, 3)
    kinds = [argument.kind.value for argument in machine.machine.arguments]
    assert kinds == ["tensor", "value", "number", "number"]


LAYERS = [torch.relu, torch.tanh]


def by_number(x: torch.Tensor, layer: int) -> torch.Tensor:
    return LAYERS[layer](x)


def test_a_number_that_must_be_known_is_fixed() -> None:
    machine = explored(by_number, (MIXED, 1))
    with pytest.raises(Refused):
        machine(MIXED, 0)


def test_what_only_python_can_do_is_an_error_with_its_line() -> None:
    def prints(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print(y)
        return y

    def opens(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            open("/dev/null").close()
        return x

    def numpy(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)

    for function, line in ((prints, 2), (opens, 2), (numpy, 1)):
        with pytest.raises(SmeltError) as caught:
            explore(function, (UP,))
        assert caught.value.code == "SM060"
        assert caught.value.hint
        assert f"test_branches.py:{function.__code__.co_firstlineno + line}" in caught.value.where


def test_writes_to_what_is_not_its_own_are_refused() -> None:
    seen: list[torch.Tensor] = []

    def appends(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x

    for function in (appends, writes):
        with pytest.raises(SmeltError, match="SM060"):
            explore(function, (UP,))
    assert seen == []


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


def test_an_object_that_cannot_be_looked_into_is_refused() -> None:
    def boxed(x: torch.Tensor) -> torch.Tensor:
        box = Slotted(x * 2)
        if x.sum() > 0:
            return box.held
        return -box.held

    with pytest.raises(SmeltError, match="cannot look into"):
        explore(boxed, (UP,))


class Record(dict):  # type: ignore[type-arg]
    """A dict with attributes, as models return."""


def test_objects_that_hold_tensors_over_a_branch() -> None:
    def recorded(x: torch.Tensor) -> torch.Tensor:
        record = Record(y=x * 2)
        record.z = x + 1  # type: ignore[attr-defined]
        if x.sum() > 0:
            record["y"] = record["y"] + record.z  # type: ignore[attr-defined]
        return record["y"] - record.z  # type: ignore[attr-defined]

    explored(recorded, *ALL)


class Switch:
    on = False


SWITCH = Switch()


def test_a_setting_that_is_put_back_is_no_change() -> None:
    def switches(x: torch.Tensor) -> torch.Tensor:
        SWITCH.on = False
        SWITCH.__dict__["on"] = True
        y = x * 2 if SWITCH.on else x
        SWITCH.on = False
        return y if y.sum() > 0 else x

    SWITCH.on = False
    explored(switches, *ALL)


def test_a_backward_in_a_branch_is_refused() -> None:
    weight = torch.ones(3, requires_grad=True)

    def trains(x: torch.Tensor) -> torch.Tensor:
        loss = (weight * x).sum()
        if loss > 0:
            loss.backward()
        return loss.detach()

    with pytest.raises(SmeltError, match="SM060"):
        explore(trains, (UP,))


def test_many_flags_stay_as_in_the_example() -> None:
    def flags(x: torch.Tensor, a: bool, b: bool, c: bool, d: bool, e: bool) -> torch.Tensor:
        return x + a + 2 * b + 4 * c + 8 * d + 16 * e

    machine = explored(flags, (UP, True, False, True, True, False))
    with pytest.raises(Refused):
        machine(UP, False, False, True, True, False)


class Counting(nn.Module):
    """A buffer that is written in place is state."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.count.add_(x)
        return self.count * 2


def test_buffers_are_state() -> None:
    model = Counting()
    machine = Reference(explore(model, (UP,)))
    assert torch.equal(model.count, ZERO)
    for x in (UP, DOWN, MIXED, UP):
        same(machine(x), model(x))
