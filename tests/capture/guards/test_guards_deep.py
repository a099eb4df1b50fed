"""Stale guards deep inside a model, once its guards have been short-cut: every change still gives the eager answer.

Also what guards may cost in memory: nothing is kept alive, and calls add up to nothing.
"""

import gc
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import smelt
import tests.capture.guards.test_guards_deep as this_module
from smelt import _native
from tests.capture.programs import Captured, assert_alike
from tests.layout import needs_layout

SCALE = 2.0
X = torch.arange(8.0).reshape(2, 4) / 8


def default_shift(x: torch.Tensor, by: float = 0.5, *, times: int = 1) -> torch.Tensor:
    return x + by * times


class Settings:
    """An ordinary object that modules share."""

    factor = 1.5

    def __init__(self) -> None:
        self.offset = 0.25
        self.steps = [1, 2]

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.offset + sum(self.steps)


class Base(nn.Module):
    def bend(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


class Block(Base):
    limit = 3.0

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.0)
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))
        self.settings = settings
        self.register_buffer("bias", torch.ones(4))
        self.table = {"a": 1, "b": 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bend(self.dropout(self.first(x))) + self.bias
        for norm in self.norms:
            x = norm(x)
        x = default_shift(x, times=self.table["a"]) * SCALE
        if self.training:
            x = x + 1
        return self.settings.apply(x).clamp(max=self.limit)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.blocks = nn.ModuleList(Block(self.settings) for _ in range(3))
        self.scale = self.make_scale(1.25)

    def make_scale(self, factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def scale(x: torch.Tensor) -> torch.Tensor:
            return x * factor

        return scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.scale(x)


def deep(model: Model) -> Block:
    block = model.blocks[1]
    assert isinstance(block, Block)
    return block


def patch(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Sets an attribute; returns how to undo it."""
    hidden = isinstance(owner, type) and name not in owner.__dict__ and name != "__bases__"
    before = None if hidden else getattr(owner, name)

    def undo() -> None:
        if hidden:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    setattr(owner, name, value)
    return undo


def replace_dict(model: Model) -> None:
    block = deep(model)
    block.__dict__ = {**block.__dict__, "training": not block.training}


def rebind_cell(model: Model) -> None:
    closure = model.scale.__closure__
    assert closure is not None
    closure[0].cell_contents = 2.5


def reorder_modules(model: Model) -> None:
    model.blocks._modules["0"], model.blocks._modules["2"] = model.blocks._modules["2"], model.blocks._modules["0"]


def swap_data(model: Model, data: torch.Tensor) -> None:
    deep(model).first.weight.data = data


class Louder(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 3


CHANGES: dict[str, Callable[[Model], Any]] = {
    "same value again": lambda m: setattr(deep(m).settings, "offset", deep(m).settings.offset),
    "object's attribute": lambda m: setattr(m.settings, "offset", 0.75),
    "attribute hides the class": lambda m: setattr(m.settings, "factor", 2.5),
    "list item": lambda m: m.settings.steps.__setitem__(1, 5),
    "list grows": lambda m: m.settings.steps.append(5),
    "list replaced by an equal one": lambda m: setattr(m.settings, "steps", [1, 2]),
    "dict item": lambda m: deep(m).table.update(a=3),
    "dict item deleted and back": lambda m: deep(m).table.update(a=deep(m).table.pop("a") + 1),
    "dict replaced": lambda m: setattr(deep(m), "table", {"a": 4}),
    "instance dict swapped": replace_dict,
    "class of a module": lambda m: setattr(deep(m), "__class__", Louder),
    "module replaced in a list": lambda m: m.blocks.__setitem__(1, Block(m.settings)),
    "module replaced": lambda m: setattr(deep(m), "first", nn.Linear(4, 4)),
    "module of another kind": lambda m: setattr(deep(m), "first", nn.Identity()),
    "modules reordered": reorder_modules,
    "module added": lambda m: m.blocks.append(Block(m.settings)),
    "module deleted": lambda m: m.blocks.__delitem__(2),
    "parameter replaced": lambda m: setattr(deep(m).first, "weight", nn.Parameter(torch.ones(4, 4))),
    "parameter removed": lambda m: setattr(deep(m).first, "bias", None),
    "data swapped": lambda m: swap_data(m, torch.ones(4, 4)),
    "data with other strides": lambda m: swap_data(m, torch.ones(4, 4).t()),
    "data written": lambda m: deep(m).first.weight.data.fill_(0.5),
    "frozen": lambda m: deep(m).first.weight.requires_grad_(False),
    "all frozen": lambda m: m.requires_grad_(False),
    "buffer replaced": lambda m: setattr(deep(m), "bias", torch.zeros(4)),
    "buffer reshaped": lambda m: setattr(deep(m), "bias", torch.zeros(1, 4)),
    "buffer wants gradients": lambda m: deep(m).bias.requires_grad_(),
    "training flag": lambda m: deep(m).train(not deep(m).training),
    "training flag of a leaf": lambda m: setattr(deep(m).dropout, "p", 1.0),
    "forward hook": lambda m: deep(m).norms[1].register_forward_hook(lambda module, args, out: out * 2),
    "forward pre-hook": lambda m: deep(m).norms[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "forward on the instance": lambda m: setattr(deep(m).first, "forward", lambda x: x - 1),
    "method on the instance": lambda m: setattr(deep(m), "bend", torch.relu),
    "closure cell": rebind_cell,
    "closure replaced": lambda m: setattr(m, "scale", m.make_scale(3.5)),
    "method of the class": lambda m: patch(Block, "bend", lambda self, x: torch.relu(x)),
    "method of the base": lambda m: patch(Base, "bend", lambda self, x: torch.relu(x)),
    "attribute of the class": lambda m: patch(Block, "limit", 1.0),
    "attribute of an object's class": lambda m: patch(Settings, "factor", 4.0),
    "method of an object's class": lambda m: patch(Settings, "apply", lambda self, x: x - 1),
    "bases of the class": lambda m: patch(Block, "__bases__", (Gentle,)),
    "global": lambda m: patch(this_module, "SCALE", 4.0),
    "default": lambda m: patch(default_shift, "__defaults__", (0.125,)),
    "keyword default": lambda m: patch(default_shift, "__kwdefaults__", {"times": 3}),
    "code": lambda m: patch(default_shift, "__code__", other_shift.__code__),
    "function of torch": lambda m: patch(functional, "linear", lambda x, w, b=None: x @ w),
}


class Gentle(nn.Module):
    def bend(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def other_shift(x: torch.Tensor, by: float = 0.5, *, times: int = 1) -> torch.Tensor:
    return x - by * times


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_a_change_deep_inside(name: str, grad: bool) -> None:
    torch.manual_seed(0)
    model, runner = Model(), Captured()
    undo = None
    try:
        with torch.set_grad_enabled(grad):
            for _ in range(4):
                assert_alike(runner(model, X), model(X))
            assert runner.graphs
            undo = CHANGES[name](model)
            for _ in range(4):
                assert_alike(runner(model, X), model(X))
            if isinstance(undo, FunctionType):
                undo()
                undo = None
            for _ in range(2):
                assert_alike(runner(model, X), model(X))
    finally:
        if isinstance(undo, FunctionType):
            undo()


def guards_of(compiled: Any) -> list[_native.Guards]:
    return [thing for thing in gc.get_objects() if type(thing) is _native.Guards and thing.fast_path is not None]


@needs_layout
def test_little_is_asked_of_a_model_that_does_not_change() -> None:
    model = Model()
    runner = Captured()
    gc.collect()
    before = {id(guards) for guards in guards_of(runner)}
    with torch.no_grad():
        for _ in range(4):
            runner(model, X)
    (found,) = [guards for guards in guards_of(runner) if id(guards) not in before]
    facts, questions = found.fast_path or (0, 0)
    assert facts > 100
    assert questions <= 12  # the state of the process, and the argument


def test_two_models_of_one_class_take_turns() -> None:
    first, second, runner = Model(), Model(), Captured()
    second.settings.offset = 7.0
    for _ in range(6):
        for model in (first, second):
            assert_alike(runner(model, X), model(X))


def test_new_models_where_old_ones_lay() -> None:
    runner = Captured()
    for step in range(12):
        model = Model()
        model.settings.offset = step % 3 / 4
        for _ in range(3):
            assert_alike(runner(model, X), model(X))
        del model
        gc.collect()


def test_a_counter_that_moves_at_every_call() -> None:
    model = Model()

    def f(x: torch.Tensor) -> torch.Tensor:
        return model(x) + 1  # type: ignore[no-any-return]

    runner = Captured()
    for step in range(8):
        model.seen = step
        this_module.__dict__["noise"] = step
        assert_alike(runner(f, X), f(X))
    assert len(runner.graphs) == 1
    deep(model).settings.offset = 3.0
    assert_alike(runner(f, X), f(X))


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_many_calls_leave_nothing_behind(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = smelt.compile(f, backend=backend)
    x = torch.ones(3)
    for _ in range(1000):
        compiled(x)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(100_000):
        compiled(x)
    gc.collect()
    assert abs(sys.getallocatedblocks() - before) < 200
