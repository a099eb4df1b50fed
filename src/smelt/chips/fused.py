"""Functions of tensors as one program of a chip, for decompositions that run a few operators many times over.

    @fused
    def step(a, j): ...          called on the chip's tensors: recorded once, compiled once per kind of call, launched

Operators called one by one are a program each. A loop over the columns of a matrix calls some twenty of them for each
column; as one function those are two or three kernels. A number that changes from call to call is given as a tensor of
the host's (`number`), which is passed along with the launch; other numbers are part of the kind.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from smelt.base.errors import LibraryError
from smelt.chips.apart import run_apart, run_here
from smelt.chips.kinds import pattern_of, spec_of_input
from smelt.device.host_library import HOST
from smelt.dispatch.tensors import on_meta
from smelt.ir.graph import GraphCompiler, GraphLevel, Traced
from smelt.ir.tensorspec import set_spec
from smelt.symbolic.expressions import ShapeEnv

Function = Callable[..., Any]

_thread = threading.local()


class FusedFunctions:
    """What is compiled of them for one chip. `dtypes`: those it has, all if there are none."""

    def __init__(self, compiler: GraphCompiler, dtypes: tuple[str, ...]) -> None:
        self._compiler = compiler
        self._dtypes = dtypes
        self._kinds: dict[Any, Function] = {}
        self._bound: set[Any] = set()
        self._lock = threading.RLock()

    def forget(self) -> None:
        with self._lock:
            self._kinds.clear()
            self._bound.clear()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within, fused functions run on this chip."""
        before = getattr(_thread, "functions", None)
        _thread.functions = self
        try:
            yield
        finally:
            _thread.functions = before

    def has(self, dtype: torch.dtype) -> bool:
        return not self._dtypes or str(dtype).removeprefix("torch.") in self._dtypes

    def call(self, function: Function, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if not all(each.numel() for each in tensors):
            return _empty(function, args)
        rest = tuple([None if isinstance(each, torch.Tensor) else each for each in args])
        layouts = tuple([(each.shape, each.stride(), each.dtype) for each in tensors])
        kind = (function, rest, tuple([pattern_of(each) for each in tensors]))
        with self._lock:
            run = self._kinds.get(kind)
            if run is None:
                run = self._kinds[kind] = self._compiled(function, args)
            is_bound = (kind, layouts) in self._bound
            self._bound.add((kind, layouts))
        found: tuple[torch.Tensor, ...] = run_here(run, tensors) if is_bound else run_apart(run, tensors)
        return found

    def _compiled(self, function: Function, args: tuple[Any, ...]) -> Function:
        try:
            found: Function = run_apart(self._compiler, [_traced(function, args)])
        except LibraryError as error:  # the chip has no code for a part of it
            raise NotImplementedError(f"{function.__name__}: {error}") from error
        return found


def _empty(function: Function, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """What comes out where nothing goes in: for that nothing is compiled."""
    given = [on_meta(each) if isinstance(each, torch.Tensor) and each.dim() else each for each in args]
    found = function(*given)
    results = found if isinstance(found, tuple) else (found,)
    if any(each.numel() for each in results):
        raise NotImplementedError("something is made of tensors without elements")
    device = next(each.device for each in args if isinstance(each, torch.Tensor) and each.dim())
    return tuple([torch.empty(each.shape, dtype=each.dtype, device=device) for each in results])


def _traced(function: Function, args: tuple[Any, ...]) -> Traced:
    graph, shape_env = fx.Graph(), ShapeEnv()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    given: list[Any] = []
    for place, each in enumerate(args):
        if isinstance(each, torch.Tensor):
            node = graph.placeholder(f"input_{place}")
            set_spec(node, spec_of_input(each, place, shape_env, static=False))
            each = fx.Proxy(node, tracer)
        given.append(each)
    found = function(*given)
    results = found if isinstance(found, tuple) else (found,)
    graph.output(tuple([each.node for each in results]))
    return Traced(graph, GraphLevel.TORCH)


def current() -> FusedFunctions:
    """Of the chip whose decomposition is running."""
    found: FusedFunctions | None = getattr(_thread, "functions", None)
    assert found is not None, "a fused function is called by a decomposition"
    return found


def fused(function: Function) -> Function:
    """The function as one program; it returns a tensor, or a tuple of them."""

    def call(*args: Any) -> Any:
        found = current().call(function, args)
        return found[0] if len(found) == 1 else found

    call.__name__ = function.__name__
    call.__doc__ = function.__doc__
    return call


def number(value: int) -> torch.Tensor:
    """An integer that changes from call to call."""
    return torch.tensor(value, dtype=torch.int64, device=HOST)


def widest(dtype: torch.dtype) -> torch.dtype:
    """In what a decomposition computes, rounding once at the end: float64 where the chip has it."""
    if current().has(torch.float64):
        return torch.float64
    return torch.float32 if dtype.itemsize < 4 else dtype
