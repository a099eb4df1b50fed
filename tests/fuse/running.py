"""For the tests of fusion: trace a function, fuse it, check the program, run it by the interpreter.

    program = fused(fn, x, w)               the program of fn's ATen graph
    assert_same(fn, x, w, budget=0)           interpreter against eager, values and strides
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from smelt.base.options import Options
from smelt.device import find, register, withdraw
from smelt.fuse import build_program
from smelt.ir.check_kernel import check_program
from smelt.ir.graph import GraphLevel, Traced, check_graph
from smelt.ir.program import Program
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import Recorder
from tests.kernel_reference import run_program


def traced(
    fn: Callable[..., Any], *args: torch.Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> Traced:
    """The ATen graph of `fn` on tensors like `args`."""
    specs = [TensorSpec.of(arg) for arg in args]
    with Recorder(decompositions) as recorder:
        out = fn(*(recorder.placeholder(f"x{n}", spec) for n, spec in enumerate(specs)))
    recorder.output(out if isinstance(out, tuple) else (out,))
    found = Traced(recorder.graph, GraphLevel.PURE, recorder.constants)
    check_graph(found.graph, GraphLevel.PURE)
    return found


def fused(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    budget: int = -1,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    products: str = "auto",
) -> Program:
    """The checked program of `fn`. With `products="own"`, of a target that has code for all of them."""
    graph = traced(fn, *args, decompositions=decompositions)
    with reference_target() if products == "own" else contextlib.nullcontext("") as target:
        options = Options(max_rewrites=budget, check_specs=True, products=products, target=target)
        program = build_program(graph, "program", options)
    check_program(program)
    return program


def assert_same(
    fn: Callable[..., Any], *args: torch.Tensor, budget: int = -1, products: str = "auto", **tolerance: Any
) -> Program:
    """Run `fn` eagerly and as a program; values, dtypes and strides must agree."""
    program = fused(fn, *args, budget=budget, products=products)
    expected = fn(*args)
    compare(run_program(program, args), expected if isinstance(expected, tuple) else (expected,), **tolerance)
    return program


@contextlib.contextmanager
def reference_target() -> Iterator[str]:
    """A target for which there is code for whatever contraction: what the interpreter is."""
    register("reference", lambda: find("cpu"), devices=("cpu",), contraction_cycles=lambda _: 0.0, on_request=True)
    try:
        yield "reference"
    finally:
        withdraw("reference")


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Eager by its own code. On x86 oneDNN's gelu of infinity is NaN: beyond the end of its table it multiplies that by
    coefficients that are zero."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def compare(got: Any, expected: Any, **tolerance: Any) -> None:
    assert len(got) == len(expected)
    for have, want in zip(got, expected, strict=True):
        if not isinstance(want, torch.Tensor):
            assert have == want
            continue
        assert have.dtype is want.dtype and have.shape == want.shape
        wanted = [(size, step) for size, step in zip(want.shape, want.stride(), strict=True) if size > 1]
        assert [(size, step) for size, step in zip(have.shape, have.stride(), strict=True) if size > 1] == wanted
        torch.testing.assert_close(have, want, equal_nan=True, **tolerance)
