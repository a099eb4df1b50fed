"""Compiled autograd: the whole backward, as the engine runs it, captured and compiled.

    with smelt.compiled_autograd.enable(smelt.compile(fullgraph=True)):
        loss.backward()

Within, every backward of this thread (`loss.backward()`, `torch.autograd.grad`) is captured through graph breaks of the
forward, through eager parts and through hooks. `smelt.config.compiled_autograd = True` is the switch for all threads:
backwards inside a compiled function are compiled as that function is, others by `smelt.compile()`.
"""

import contextlib
import threading
from typing import Any

import torch

from smelt import _native
from smelt.api import Compiling, backward_compilers, settings_of_region
from smelt.base import locks
from smelt.base.options import config, is_disabled
from smelt.pipeline.backward.compiled_backward import CompiledBackwards

__all__ = ["disable", "enable"]

_REMEMBERED = 32  # compilers whose compiled backwards are kept


class _Enabled(threading.local):
    def __init__(self) -> None:
        self.compilers: list[CompiledBackwards | None] = []


_enabled = _Enabled()
_lock = locks.lock()
_uses = 0
_known: dict[Any, CompiledBackwards] = {}


def enable(compiler: Any) -> contextlib.AbstractContextManager[None]:
    """Capture and compile the backwards of this thread.

    `compiler` is `smelt.compile(…)` without a model, the name of a backend, or any function that takes the captured
    `fx.GraphModule` and returns a callable. Compiled code is reused when the same `compiler` is enabled again.
    """
    return _Installed(_backwards_of(compiler))


def disable() -> contextlib.AbstractContextManager[None]:
    """Run the backwards of this thread in PyTorch's engine."""
    return _Installed(None)


class _Installed(contextlib.ContextDecorator):
    """A block in which backwards of this thread are compiled, or left alone; a generator would cost as much again."""

    def __init__(self, backwards: CompiledBackwards | None) -> None:
        self.backwards = backwards

    def __enter__(self) -> None:
        _put_in_place(1)
        _enabled.compilers.append(self.backwards)

    def __exit__(self, *error: object) -> None:
        _enabled.compilers.pop()
        _put_in_place(-1)


def _backwards_of(compiler: Any) -> CompiledBackwards:
    with _native.Held(_lock):
        backwards = _known.get(compiler)
        if backwards is None:
            new = CompiledBackwards(*backward_compilers(compiler))
            while len(_known) >= _REMEMBERED:
                del _known[next(iter(_known))]
            backwards = _known[compiler] = new
        return backwards


def _switched_on() -> CompiledBackwards:
    """What the switch means here: as the compiled function that is running, or by default."""
    return _backwards_of(settings_of_region(_native.active()) or Compiling())


def _compiler_here() -> CompiledBackwards | None:
    if is_disabled():
        return None
    compilers = _enabled.compilers
    if compilers:
        return compilers[-1]
    return _switched_on() if config.compiled_autograd else None


class _Engine:
    """Stands before PyTorch's engine while compiled autograd is in use anywhere."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def run_backward(self, *args: Any, **named: Any) -> Any:
        compiler = _compiler_here()
        if compiler is None:
            return self.engine.run_backward(*args, **named)
        return compiler.run_backward(self.engine, *args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def _put_in_place(change: int) -> None:
    """Stand before the engine while anybody needs it."""
    global _uses
    holder: Any = torch.autograd.Variable
    with _native.Held(_lock):
        _uses += change
        engine = holder._execution_engine
        if _uses and type(engine) is not _Engine:
            holder._execution_engine = _Engine(engine)
        elif not _uses and type(engine) is _Engine:
            holder._execution_engine = engine.engine


def switch(before: object, now: object) -> None:
    """`smelt.config.compiled_autograd` was set."""
    _put_in_place(int(bool(now)) - int(bool(before)))
