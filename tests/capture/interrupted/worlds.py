"""Programs whose compilation is interrupted, each with all the objects it may have written.

A `World` is made anew for each interruption: eager or compiled, by what it is given in place of `smelt.compile`.
"""

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import smelt

Compile = Callable[..., Any]


class World:
    """A program: `step` is interrupted, `objects` are what it may write."""

    def __init__(self, compiled: Compile) -> None:
        torch.manual_seed(0)
        self.compiled = compiled
        self.objects: dict[str, Any] = {}
        self.make()

    def make(self) -> None:
        raise NotImplementedError

    def step(self) -> Any:
        raise NotImplementedError

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """The state of the process in which all of it happens."""
        return contextlib.nullcontext()

    def state(self) -> dict[str, Any]:
        """Copies of all that the program may write."""
        return {name: _copied(each) for name, each in self.objects.items()}

    def take(self, state: dict[str, Any]) -> None:
        """Go on from the state of another."""
        for name, value in state.items():
            _put(self.objects[name], value)


def _copied(each: Any) -> Any:
    if isinstance(each, torch.Tensor):
        return each.detach().clone(), None if each.grad is None else each.grad.clone()
    if isinstance(each, torch.optim.Optimizer):
        return copy.deepcopy(each.state_dict())
    return copy.deepcopy(each.__dict__ if type(each).__module__ == __name__ else each)


def _put(each: Any, value: Any) -> None:
    if isinstance(each, torch.Tensor):
        with torch.no_grad():
            each.copy_(value[0])
        each.grad = None if value[1] is None else value[1].clone()
    elif isinstance(each, torch.optim.Optimizer):
        each.load_state_dict(value)
    elif isinstance(each, list):
        each[:] = copy.deepcopy(value)
    elif isinstance(each, dict):
        each.clear()
        each.update(copy.deepcopy(value))
    else:
        each.__dict__.clear()
        each.__dict__.update(copy.deepcopy(value))


class Simple(World):
    """A function of a tensor and a number."""

    def make(self) -> None:
        def program(x: torch.Tensor, scale: float) -> torch.Tensor:
            return (x * scale).sin().softmax(-1).sum(0)

        self.program, self.x = self.compiled(program), torch.randn(4, 8)

    def step(self) -> Any:
        return self.program(self.x, 2.0)


class Training(World):
    """A model with a loss and its backward, dropout and a normalization."""

    def make(self) -> None:
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
        self.run = self.compiled(self.model)
        self.objects = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.x, self.y = torch.randn(6, 8), torch.randint(0, 4, (6,))

    def step(self) -> Any:
        loss = F.cross_entropy(self.run(self.x), self.y)
        loss.backward()
        return loss


class Broken(World):
    """A graph break under no_grad and inside a loop, and a call on each side of it."""

    def make(self) -> None:
        def inner(x: torch.Tensor) -> torch.Tensor:
            smelt.graph_break()
            return x.cos()

        def program(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = inner(x + 1)
            for _ in range(2):
                x = x * y
                if x.sum().item() > 1e9:
                    return x
            return inner(x) + y

        self.program, self.x = self.compiled(program), torch.randn(4, 8, requires_grad=True)

    def step(self) -> Any:
        return self.program(self.x)


class Note:
    """An object of the program."""

    def __init__(self) -> None:
        self.count = 0
        self.last: Any = None


class Writing(World):
    """Lists, dicts, attributes, buffers and inputs that are written."""

    def make(self) -> None:
        kept: list[Any] = [0]
        table: dict[str, Any] = {"a": 1}
        note, buffer = Note(), torch.zeros(4)
        self.objects = {"kept": kept, "table": table, "note": note, "buffer": buffer}

        def program(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            kept.append(float(note.count))
            table["b"] = len(kept)
            table.pop("a", None)
            note.count += 1
            note.last = [1, 2]
            buffer.add_(y.sum(0))
            return y + buffer

        self.program, self.x = self.compiled(program), torch.randn(3, 4)

    def step(self) -> Any:
        return self.program(self.x)


class WholeBackward(World):
    """A backward that compiled autograd captures, with a hook on the way."""

    def make(self) -> None:
        self.model = nn.Linear(4, 4)
        self.objects = dict(self.model.named_parameters())
        self.x = torch.randn(3, 4)
        self.is_eager = self.compiled(Note) is Note

    def step(self) -> Any:
        hidden = self.model(self.x).tanh()
        hidden.register_hook(lambda gradient: gradient * 2)
        self.backward(hidden.pow(2).sum())
        return hidden

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def around(self) -> contextlib.AbstractContextManager[Any]:
        if self.is_eager:
            return contextlib.nullcontext()
        return smelt.compiled_autograd.enable(smelt.compile())


class Optimizing(World):
    """A whole training step with its optimizer in one compiled function."""

    def make(self) -> None:
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.objects = {**dict(self.model.named_parameters()), "optimizer": self.optimizer}
        self.x = torch.randn(5, 4)

        def program(x: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            return loss

        self.program = self.compiled(program)

    def step(self) -> Any:
        return self.program(self.x)


class Resized(World):
    """Calls with other sizes: recompiled in symbols, then bound to more of them, a backward for each."""

    def make(self) -> None:
        def program(x: torch.Tensor) -> torch.Tensor:
            return (x.exp().mean(0) * x.shape[0]).sum()

        self.program = self.compiled(program)
        self.inputs = [torch.randn(size, 4, requires_grad=True) for size in (3, 5, 9)]
        self.objects = {f"x{number}": each for number, each in enumerate(self.inputs)}

    def step(self) -> Any:
        found = [self.program(each) for each in self.inputs]
        sum(found).backward()
        return found


class Ambient(World):
    """Autocast, saving hooks, anomaly detection and a default device are the caller's."""

    def make(self) -> None:
        self.model = nn.Linear(4, 4)
        self.objects = dict(self.model.named_parameters())

        def program(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                x = x + torch.ones(4)
            return self.model(x).float().sum()

        self.program, self.x = self.compiled(program), torch.randn(3, 4)

    def step(self) -> Any:
        loss = self.program(self.x)
        loss.backward()
        return loss

    def around(self) -> contextlib.AbstractContextManager[Any]:
        stack = contextlib.ExitStack()
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x))
        stack.enter_context(torch.autograd.set_detect_anomaly(True))
        stack.enter_context(torch.device("cpu"))
        return stack


class Inferring(World):
    """Inference mode, with numbers drawn at random from the default generator and one of the program's."""

    def make(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

        def program(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x) + torch.rand(4, generator=self.generator)

        self.program, self.x = self.compiled(program), torch.randn(3, 4)

    def step(self) -> Any:
        return self.program(self.x)

    def around(self) -> contextlib.AbstractContextManager[Any]:
        return torch.inference_mode()

    def state(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def take(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Nested(World):
    """Graphs inside the graph: an `autograd.Function`, a checkpoint, two results of which one leads to the other."""

    def make(self) -> None:
        self.x = torch.randn(3, 4, requires_grad=True)
        self.objects = {"x": self.x}

        def body(x: torch.Tensor) -> torch.Tensor:
            return x.exp().tanh()

        def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y: Any = checkpoint(body, _Square.apply(x), use_reentrant=False)
            return y, (y * 3).sum()

        self.program = self.compiled(program)

    def step(self) -> Any:
        hidden, loss = self.program(self.x)
        hidden.retain_grad()
        loss.backward()
        return loss, hidden.grad


_directory = tempfile.TemporaryDirectory()


def _kept_program(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x * scale).cos().sum(0)


class Loaded(World):
    """A capture that is found on the disk."""

    def make(self) -> None:
        os.environ["SMELT_CACHE"] = "1"
        smelt.config.disk_cache_dir = _directory.name
        self.program, self.x = self.compiled(_kept_program), torch.randn(3, 4)

    def step(self) -> Any:
        return self.program(self.x, 2.0)


class Storing(Loaded):
    """A capture that is kept on the disk."""

    def make(self) -> None:
        super().make()
        shutil.rmtree(_directory.name, ignore_errors=True)


WORLDS: dict[str, type[World]] = {
    each.__name__.lower(): each
    for each in (
        Simple,
        Training,
        Broken,
        Writing,
        WholeBackward,
        Optimizing,
        Resized,
        Ambient,
        Inferring,
        Nested,
        Loaded,
        Storing,
    )
}
