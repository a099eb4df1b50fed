"""Ahead-of-time autograd by hand: choose the compilers of forward and backward, and how the joint graph is split.

    def show(module, examples):
        print(module.code)
        return module

    fast = smelt.aot_function(fn, fw_compiler=show, bw_compiler=show)

Compilers receive `(fx.GraphModule, example_inputs)` and return a callable from flat tensors to a tuple. A
`partition_fn` is `smelt.partition.default`, `smelt.partition.min_cut`, or a function
`(joint_module, joint_inputs, *, num_fwd_outputs) -> (forward_module, backward_module)`.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from smelt import _native
from smelt.autograd.aot_inputs import NotPure, ProgramCode, ambient_key, key_of, varies, why_not_traced
from smelt.autograd.joint.functional_trace import CannotTrace, Decompositions
from smelt.autograd.joint.partial_backward import cut_at_outputs, for_tangents
from smelt.autograd.joint.trace_joint import Joint, TraceSource, trace_forward, trace_joint
from smelt.autograd.partition import partition
from smelt.autograd.partition.partition import ForwardBackward
from smelt.base import events, locks
from smelt.base.errors import SmeltError, warn
from smelt.ir.graph import Traced, placeholders, returning_tuple
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.meta.fake_tensor import FakeTensor
from smelt.runtime.autograd.join import join

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
PartitionFunction = Callable[..., Any]

_VERSIONS = 64  # kept of one function; beyond that the oldest is made anew when it comes


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction | None = None,
    decompositions: Decompositions | None = None,
) -> Callable[..., Any]:
    """Trace `fn` ahead of time, forward and backward, once per layout of its inputs. Returns the compiled function.

    `fw_compiler` gets the forward and `bw_compiler` (the same by default) the backward, as a module and examples;
    each returns a callable that replaces it. `partition_fn` chooses the saved values: `smelt.partition.default`,
    `smelt.partition.min_cut` or your own function. `decompositions` maps operators to functions that decompose them.

    Arguments may be nested containers; tensors in them are inputs, and a version is made for each combination of the
    numbers and other plain values. Tensors that `fn` reaches in other ways are constants, and must not require grad.
    A function that cannot be a graph, for example because it resizes an input, falls back to eager with a warning.
    """
    for name, value in (("fn", fn), ("fw_compiler", fw_compiler)):
        if not callable(value):
            raise SmeltError("SM001", f"aot_function takes a callable as {name}, not {type(value).__name__}")
    stage = _Stage(fw_compiler, bw_compiler or fw_compiler, partition_fn or partition.default, decompositions)
    versions = _Versions(fn, stage)

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return versions(args, kwargs)

    return call


def aot_module(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """A module that shares `mod`'s parameters and buffers and whose forward is `aot_function` of `mod`'s.

    `*args` and `**kwargs` are those of `smelt.aot_function`, from `fw_compiler` on.
    """
    return _AotModule(mod, aot_function(lifted(mod), *args, **kwargs))


def aot_module_simplified(
    mod: torch.nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction | None = None,
    decompositions: Decompositions | None = None,
) -> Callable[..., Any]:
    """For backends: compile `mod` immediately for inputs like `args`.

    The result takes these inputs and reads the parameters and buffers of `mod` itself.

    `fw_compiler`, `bw_compiler`, `partition_fn` and `decompositions` are those of `smelt.aot_function`.
    """
    stage = _Stage(fw_compiler, bw_compiler or fw_compiler, partition_fn or partition.default, decompositions)
    versions = _Versions(lifted(mod), stage)
    if not any(map(varies, pytree.tree_leaves(args))):  # else there is one for each of the sizes that come
        versions.prepare((state_of(mod), *args), {})

    def call(*args: Any) -> Any:
        return versions((state_of(mod), *args), {})

    return call


class _AotModule(torch.nn.Module):
    """Parameters are looked up at each call, so that they may be replaced between calls."""

    def __init__(self, original: torch.nn.Module, compiled: Callable[..., Any]) -> None:
        super().__init__()
        self.original = original
        self._compiled = compiled

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(state_of(self.original), *args, **kwargs)


class _Versions:
    """A function, compiled for each layout of its arguments and each combination of plain values it is called with."""

    def __init__(self, fn: Callable[..., Any], stage: "_Stage") -> None:
        self.fn, self.stage = fn, stage
        self._ready: dict[Any, _Entry | None] = {}  # None: falls back to eager
        self._building = locks.lock()
        self._said: set[str] = set()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        around = ambient_key()
        reason = next(filter(None, map(why_not_traced, leaves)), None)
        if around is None or reason is not None:
            if reason is not None:
                self._fall_back(reason)
            return self.fn(*args, **kwargs)
        entry = self._entry(leaves, tree, around)
        return self.fn(*args, **kwargs) if entry is None else entry(leaves)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the version for arguments like these."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        around = ambient_key()
        if around is not None and not any(map(why_not_traced, leaves)):
            self._entry(leaves, tree, around)

    def _entry(self, leaves: Sequence[Any], tree: Any, around: tuple[Any, ...]) -> "_Entry | None":
        key = (tree, *map(key_of, leaves), *around)
        if key in self._ready:
            return self._ready[key]
        entry: _Entry | None = _native.preserving_state(self._made_once, key, leaves, tree)
        return entry

    def _made_once(self, key: Any, leaves: Sequence[Any], tree: Any) -> "_Entry | None":
        with _native.Held(self._building):
            if key not in self._ready:
                while len(self._ready) >= _VERSIONS:
                    del self._ready[next(iter(self._ready))]
                self._ready[key] = self._built(leaves, tree)
            return self._ready[key]

    def _built(self, leaves: Sequence[Any], tree: Any) -> "_Entry | None":
        recording = torch.is_grad_enabled()
        try:
            with torch._C._InferenceMode(False), torch.set_grad_enabled(recording):  # which the first switches on
                return self.stage.build(self.fn, leaves, tree)
        except NotPure as refused:
            self._fall_back(refused.reason)
            return None

    def _fall_back(self, reason: str) -> None:
        if reason in self._said:
            return
        self._said.add(reason)
        events.count("eager_graphs")
        events.emit("graph", f"a function falls back to eager: {reason}")
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        warn(f"SM020: {name} falls back to eager, and its compilers are not called: {reason}")


class _Stage:
    """The choices of one `aot_function`."""

    def __init__(
        self,
        forward: Compiler,
        backward: Compiler,
        partition_fn: PartitionFunction,
        decompositions: Decompositions | None,
    ) -> None:
        self.forward = forward
        self.backward = backward
        self.partition_fn = partition_fn
        self.decompositions = decompositions

    def build(self, fn: Callable[..., Any], leaves: Sequence[Any], tree: Any) -> "_Entry":
        """Trace, split and compile `fn` for arguments like these."""
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        out_tree: list[Any] = []

        def call(inputs: Sequence[Any], _: Mapping[str, Any]) -> list[Any]:
            filled = list(constants)
            for place, tensor in zip(places, inputs, strict=True):
                filled[place] = tensor
            args, kwargs = pytree.tree_unflatten(filled, tree)
            on_fakes = any(map(torch._is_functional_tensor, inputs))
            with ProgramCode() if on_fakes else contextlib.nullcontext():
                outputs, spec = pytree.tree_flatten(fn(*args, **kwargs))
            out_tree[:] = [spec]
            return outputs

        specs = tuple(TensorSpec.of(leaves[place]) for place in places)
        source = TraceSource(specs, tuple(f"argument {place}" for place in places), call, {}, is_program=True)
        try:
            run = self._compile(source)
        except CannotTrace as refused:
            if out_tree and not isinstance(refused, NotPure):
                raise NotPure(refused.reason) from refused
            raise
        return _Entry(run, places, constants, out_tree[0])

    def _compile(self, source: TraceSource) -> Callable[..., tuple[Any, ...]]:
        if not (torch.is_grad_enabled() and any(spec.requires_grad for spec in source.specs)):
            pure = trace_forward(source, self.decompositions)
            return join(_compiled(self.forward, pure.traced), None, pure.plan, eager=pure.eager)
        halves = self._split(trace_joint(source, self.decompositions))
        forward = _compiled(self.forward, halves.forward)
        backwards = functools.partial(self._backward, halves)
        parts = functools.partial(self._part, halves)
        return join(forward, backwards, halves.plan, replay=halves.replay, eager=halves.eager, parts=parts)

    def _backward(self, halves: ForwardBackward, arrived: int) -> Callable[..., tuple[Any, ...]] | None:
        """The backward for gradients of some results, compiled when they first arrive."""
        traced = halves.backward
        if traced is not None and arrived != (1 << len(halves.plan.tangents)) - 1:
            traced = for_tangents(traced, halves.plan, arrived)
        return None if traced is None else _compiled(self.backward, traced)

    def _part(self, halves: ForwardBackward, arrived: int, source: int | None) -> Callable[..., tuple[Any, ...]] | None:
        """A part of a backward, compiled when somebody observes the gradient of an output that others depend on."""
        traced = None if halves.arriving is None else cut_at_outputs(halves.arriving(), halves.plan, arrived, source)
        return None if traced is None else _compiled(self.backward, traced)

    def _split(self, joint: Joint) -> ForwardBackward:
        if self.partition_fn in (partition.default, partition.min_cut) or not joint.plan.tangents:
            chosen = self.partition_fn if joint.plan.tangents else partition.default
            halves: ForwardBackward = chosen(joint)
            return halves
        module = joint.traced.to_module()
        returned = self.partition_fn(module, _examples(joint.traced), num_fwd_outputs=joint.plan.forward_outputs)
        return partition.adopt(joint, *returned)


class _Entry:
    """A compiled function for one layout of arguments."""

    def __init__(
        self, run: Callable[..., tuple[Any, ...]], places: Sequence[int], constants: Sequence[Any], out_tree: Any
    ) -> None:
        self.run = run
        self.places = places
        self.constants = constants  # some are keyed by their address, which must not be reused
        self.out_tree = out_tree

    def __call__(self, leaves: Sequence[Any]) -> Any:
        return pytree.tree_unflatten(self.run(*[leaves[place] for place in self.places]), self.out_tree)


def _compiled(compiler: Compiler, traced: Traced) -> Callable[..., tuple[Any, ...]]:
    function = compiler(traced.to_module(), _examples(traced))
    if not callable(function):
        raise SmeltError("SM002", f"compiler {compiler!r} returned {type(function).__name__}, not a callable")
    return returning_tuple(function)


def _examples(traced: Traced) -> list[FakeTensor]:
    return [FakeTensor(tensor_spec(node)) for node in placeholders(traced.graph)]


def state_of(mod: torch.nn.Module) -> tuple[dict[str, torch.Tensor], tuple[bool, ...]]:
    """What a module reads besides its arguments: its tensors, and whether each part of it is training."""
    tensors = {**dict(mod.named_parameters()), **dict(mod.named_buffers())}
    return tensors, tuple(part.training for part in mod.modules())


def lifted(mod: torch.nn.Module) -> Callable[..., Any]:
    """`mod` as a function of its state."""

    def call(state: tuple[dict[str, torch.Tensor], tuple[bool, ...]], *args: Any, **kwargs: Any) -> Any:
        with _replaced(mod, state[0]):
            return mod(*args, **kwargs)

    return call


@contextlib.contextmanager
def _replaced(mod: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Replace a module's tensors, wherever it holds them, and restore them."""
    current, _ = state_of(mod)
    substitute = {id(current[name]): tensor for name, tensor in tensors.items()}
    slots: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = [
        (held, name, tensor, substitute[id(tensor)])
        for part in mod.modules()
        for held in (part._parameters, part._buffers)
        for name, tensor in held.items()
        if tensor is not None and id(tensor) in substitute
    ]
    try:
        for held, name, _own, other in slots:
            held[name] = other
        with _own_flat_weights(mod):
            yield
        if any(held.get(name) is not other for held, name, _own, other in slots):
            raise CannotTrace("the module replaces a parameter or buffer")
    finally:
        for held, name, own, _other in slots:
            held[name] = own


@contextlib.contextmanager
def _own_flat_weights(mod: torch.nn.Module) -> Iterator[None]:
    """Let recurrent layers list the weights that they have now: they would look into the memory of new ones."""
    parts = [part.__dict__ for part in mod.modules() if isinstance(part, torch.nn.RNNBase)]
    before = [(held["_flat_weights"], held["_flat_weight_refs"]) for held in parts]
    try:
        for held in parts:
            weights = [held["_parameters"].get(name) for name in held["_flat_weights_names"]]
            held["_flat_weights"] = weights
            held["_flat_weight_refs"] = [None if each is None else weakref.ref(each) for each in weights]
        yield
    finally:
        for held, (weights, refs) in zip(parts, before, strict=True):
            held["_flat_weights"], held["_flat_weight_refs"] = weights, refs
