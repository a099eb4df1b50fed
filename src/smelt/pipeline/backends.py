"""The named backends: a backend's name → a `GraphCompiler` for one `smelt.compile`.

"eager" runs the captured graph with PyTorch, "aot_eager" sends it through ahead-of-time autograd first, "llvm" goes
all the way. A custom backend is any callable `(gm: fx.GraphModule, example_inputs) -> callable`; it can be passed as
it is, registered by name, or offered by an installed package in the entry-point group `smelt.backends`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from torch import fx

from smelt.base.errors import SmeltError
from smelt.base.options import Options
from smelt.device import check_launched, check_wanted, has_chips
from smelt.ir.graph import GraphCompiler, Traced, placeholders, returning_tuple
from smelt.ir.serialize import CannotStore
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of, tensor_spec
from smelt.meta.fake_tensor import FakeTensor
from smelt.pipeline.cache.graph_json import digest, dump, has_numbers, loader
from smelt.pipeline.cache.keys import environment_key
from smelt.pipeline.cache.warm_start import load_stored, look_up
from smelt.pipeline.parts import CompiledParts
from smelt.pipeline.sizes.data_parts import has_data_sizes, in_parts
from smelt.runtime.autograd.differentiable import Flat
from smelt.runtime.program.arenas import Arenas
from smelt.symbolic.symnode import Formula

CustomBackend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
BackendFactory = Callable[[Options], GraphCompiler]

ENTRY_POINT_GROUP = "smelt.backends"

TORCH_BACKENDS = {
    "inductor": "leave backend out, or use 'llvm': smelt generates code itself and never calls Inductor",
    "cudagraphs": "leave backend out, or use 'llvm', which records no CUDA graphs but starts a whole graph in a few µs",
}
"""What to use instead of a backend that only `torch.compile` has."""


def _eager(options: Options) -> GraphCompiler:
    def compile_graph(traced: Traced) -> Callable[..., tuple[object, ...]]:
        forward = traced.plainly()
        (output,) = traced.graph.output_node().args
        return forward if isinstance(output, tuple) else returning_tuple(forward)

    return compile_graph


def _aot_eager(options: Options) -> GraphCompiler:
    def compile_graph(traced: Traced) -> Callable[..., tuple[object, ...]]:
        from smelt.pipeline.compile import EagerCompilation  # a start from the cache loads no stages

        if has_data_sizes(traced):
            return in_parts(traced, compile_graph)
        return EagerCompilation(options).compile(traced)

    return compile_graph


def _beside_stored(*arguments: Any) -> CompiledParts:
    from smelt.pipeline.compile import beside_stored  # a start from the cache loads no stages

    return beside_stored(*arguments)


def compile_llvm(
    traced: Traced, options: Options, join: Callable[[CompiledParts], Flat] = CompiledParts.joined
) -> Flat:
    """One torch-level graph, as an earlier process has left it or through the stages."""
    if has_data_sizes(traced):
        return in_parts(traced, lambda part: compile_llvm(part, options, join))
    if has_chips() and (run := _for_chip(traced, options)) is not None:
        return run
    if options.tune:
        from smelt.pipeline.tuning import tuned

        options = tuned(traced, options, compile_llvm)
    looked_up = look_up(traced, options, Arenas(), _beside_stored) if _is_fixed(traced) else None
    if looked_up is not None and looked_up[1] is not None:
        return join(looked_up[1])
    from smelt.pipeline.compile import Compilation

    return Compilation(options, looked_up, join).compile(traced)


def _for_chip(traced: Traced, options: Options) -> Flat | None:
    from smelt.pipeline.chips import chip_of, compile_for_chip

    name = chip_of(traced)
    return None if name is None else compile_for_chip(traced, options, name)


def _is_fixed(traced: Traced) -> bool:
    specs = [spec_of(node) for node in placeholders(traced.graph)]
    return all(isinstance(spec, TensorSpec) and not spec.varies for spec in specs)


class _Llvm:
    """Through all stages, or out of the disk cache (`ir.graph.PersistentCompiler`)."""

    def __init__(self, options: Options) -> None:
        check_wanted(options.target)
        check_launched(options.target)
        self._options = options

    def __call__(self, traced: Traced) -> Callable[..., tuple[object, ...]]:
        return compile_llvm(traced, self._options)

    def environment(self) -> str | None:
        if self._options.tune or self._options.check_specs:
            return None
        try:
            return environment_key(self._options)
        except CannotStore:
            return None

    def serialize(self, traced: Traced) -> Any:
        try:
            rows = dump(traced.graph)
        except CannotStore:
            return None
        return None if traced.constants or has_numbers(rows) else [digest(rows), rows]

    def load(self, data: Any, undoing: Any) -> tuple[Callable[..., tuple[object, ...]], Callable[[], Traced]] | None:
        text, rows = data
        try:
            rebuild = loader(rows)
        except (AttributeError, KeyError, ValueError):  # something else is found under a name
            return None

        @functools.cache
        def traced() -> Traced:
            return replace(rebuild(), undoing=undoing)

        run = load_stored(text, traced, self._options, _beside_stored)
        return None if run is None else (run, traced)


def _llvm(options: Options) -> GraphCompiler:
    compiler = _Llvm(options)
    if options.compile != "background":
        return compiler

    def compile_graph(traced: Traced) -> Callable[..., tuple[object, ...]]:
        from smelt.pipeline.background import BackgroundGraph, why_wait

        if why_wait(options) is not None:
            return compiler(traced)
        if has_data_sizes(traced):
            return in_parts(traced, compile_graph)
        return BackgroundGraph(traced, functools.partial(compile_llvm, options=options, join=_with_backward)).__call__

    return compile_graph


def _with_backward(parts: CompiledParts) -> Flat:
    return parts.joined(with_backward=True)


BUILT_IN: dict[str, BackendFactory] = {"eager": _eager, "aot_eager": _aot_eager, "llvm": _llvm}
_registered: dict[str, CustomBackend] = {}


def register_backend(backend: CustomBackend, name: str | None = None) -> CustomBackend:
    """Register the custom backend `backend` as `name` (by default the name of the function). Usable as a decorator."""
    if not callable(backend):
        raise SmeltError("SM002", f"a backend must be callable, not {type(backend).__name__}")
    chosen = name if name is not None else str(getattr(backend, "__name__", type(backend).__name__))
    if chosen in BUILT_IN:
        raise SmeltError("SM002", f"backend name {chosen!r} is taken by smelt itself")
    _registered[chosen] = backend
    return backend


def list_backends() -> list[str]:
    """The names that `smelt.compile(backend=…)` accepts."""
    return sorted({*BUILT_IN, *_registered, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def resolve_backend(backend: str | CustomBackend, options: Options) -> GraphCompiler:
    """The compiler behind a backend's name or a custom backend."""
    if isinstance(backend, str):
        if backend in BUILT_IN:
            return BUILT_IN[backend](options)
        custom = _registered.get(backend) or _from_entry_point(backend)
        if custom is None:
            hint = TORCH_BACKENDS.get(backend, "choose from " + ", ".join(list_backends()))
            raise SmeltError("SM002", f"unknown backend {backend!r}", hint=hint)
        return _custom(custom)
    if callable(backend):
        return _custom(backend)
    raise SmeltError(
        "SM002",
        f"backend must be a name or a callable, not {type(backend).__name__}",
        hint="choose from " + ", ".join(list_backends()),
    )


def _from_entry_point(name: str) -> CustomBackend | None:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            loaded: CustomBackend = point.load()
            return loaded
    return None


def _custom(backend: CustomBackend) -> GraphCompiler:
    def compile_graph(traced: Traced) -> Callable[..., tuple[object, ...]]:
        examples = [_example(node) for node in placeholders(traced.graph)]
        compiled = backend(traced.to_module(), examples)
        if not callable(compiled):
            raise SmeltError("SM002", f"backend {backend!r} returned {type(compiled).__name__}, not a callable")
        return returning_tuple(compiled if traced.undoing is None else traced.undoing(compiled))

    return compile_graph


def _example(node: fx.Node) -> Any:
    spec = spec_of(node)
    if isinstance(spec, NumberSpec):
        return spec.what.example if isinstance(spec.what, Formula) else spec.what.evaluate(lambda each: each.example)
    return FakeTensor(tensor_spec(node))
