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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from smelt.autograd import partition
from smelt.autograd.joint import Joint, Source, trace_forward, trace_joint
from smelt.autograd.partial import given_only, stopped
from smelt.autograd.partition import Halves
from smelt.autograd.trace import CannotTrace, Decompositions
from smelt.base.errors import SmeltError
from smelt.ir.ghost import GhostTensor
from smelt.ir.graph import Traced, placeholders
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.runtime.wrap import join

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
PartitionFunction = Callable[..., Any]


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction | None = None,
    decompositions: Decompositions | None = None,
) -> Callable[..., Any]:
    """`fn` traced ahead of time, forward and backward, once per layout of its inputs.

    `fw_compiler` gets the forward and `bw_compiler` (the same by default) the backward, as a module and examples;
    each returns what is called in its place. `partition_fn` says what is saved between them: `smelt.partition.default`,
    `smelt.partition.min_cut` or a function of yours. `decompositions` maps operators to functions that take them apart.

    Arguments may be nested containers; tensors in them are inputs, everything else is a constant of the trace. Tensors
    that `fn` reaches in other ways are constants too, and must not require grad.
    """
    for name, given in (("fn", fn), ("fw_compiler", fw_compiler)):
        if not callable(given):
            raise SmeltError("SM001", f"aot_function takes a callable as {name}, not {type(given).__name__}")
    stage = _Stage(fw_compiler, bw_compiler or fw_compiler, partition_fn or partition.default, decompositions)
    ready: dict[Any, _Entry] = {}

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch._C._are_functorch_transforms_active():  # its tensors are wrappers, which no graph can hold
            return fn(*args, **kwargs)
        leaves, tree = pytree.tree_flatten((args, kwargs))
        key = (tree, tuple(_key(leaf) for leaf in leaves), torch.is_grad_enabled(), torch._C._is_any_autocast_enabled())
        entry = ready.get(key)
        if entry is None:
            entry = ready[key] = stage.build(fn, leaves, tree)
        return entry(leaves)

    return call


def aot_module(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """A module that shares `mod`'s parameters and buffers and whose forward is `aot_function` of `mod`'s.

    `*args` and `**kwargs` are those of `smelt.aot_function`, from `fw_compiler` on.
    """
    return _AotModule(mod, aot_function(_lifted(mod), *args, **kwargs))


def aot_module_simplified(
    mod: torch.nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction | None = None,
    decompositions: Decompositions | None = None,
) -> Callable[..., Any]:
    """For backends: `mod` compiled at once for inputs like `args`. Takes those inputs, reads `mod`'s state itself.

    `fw_compiler`, `bw_compiler`, `partition_fn` and `decompositions` are those of `smelt.aot_function`.
    """
    stage = _Stage(fw_compiler, bw_compiler or fw_compiler, partition_fn or partition.default, decompositions)
    function = _lifted(mod)

    def flatten(given: Sequence[Any]) -> tuple[list[Any], Any]:
        return pytree.tree_flatten(((_state(mod), *given), {}))

    entry = stage.build(function, *flatten(args))

    def call(*given: Any) -> Any:
        return entry(flatten(given)[0])

    return call


class _AotModule(torch.nn.Module):
    """Parameters are looked up at each call, so that they may be replaced between calls."""

    def __init__(self, original: torch.nn.Module, compiled: Callable[..., Any]) -> None:
        super().__init__()
        self.original = original
        self._compiled = compiled

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(_state(self.original), *args, **kwargs)


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
            outputs, spec = pytree.tree_flatten(fn(*args, **kwargs))
            out_tree[:] = [spec]
            return outputs

        specs = tuple(TensorSpec.of(leaves[place]) for place in places)
        source = Source(specs, tuple(f"argument {place}" for place in places), call, {})
        return _Entry(self._compile(source), places, out_tree[0])

    def _compile(self, source: Source) -> Callable[..., tuple[Any, ...]]:
        if not (torch.is_grad_enabled() and any(spec.requires_grad for spec in source.specs)):
            pure = trace_forward(source, self.decompositions)
            return join(_compiled(self.forward, pure.traced), None, pure.plan, eager=pure.eager)
        halves = self._split(trace_joint(source, self.decompositions))
        forward = _compiled(self.forward, halves.forward)
        backwards = functools.partial(self._backward, halves)
        parts = functools.partial(self._part, halves)
        return join(forward, backwards, halves.plan, replay=halves.replay, eager=halves.eager, parts=parts)

    def _backward(self, halves: Halves, arrived: int) -> Callable[..., tuple[Any, ...]] | None:
        """The backward for gradients of some results, compiled when they first arrive."""
        traced = halves.backward
        if traced is not None and arrived != (1 << len(halves.plan.tangents)) - 1:
            traced = given_only(traced, halves.plan, arrived)
        return None if traced is None else _compiled(self.backward, traced)

    def _part(self, halves: Halves, arrived: int, source: int | None) -> Callable[..., tuple[Any, ...]] | None:
        """A part of a backward, compiled when somebody looks at an output that others lean on."""
        traced = None if halves.arriving is None else stopped(halves.arriving(), halves.plan, arrived, source)
        return None if traced is None else _compiled(self.backward, traced)

    def _split(self, joint: Joint) -> Halves:
        if self.partition_fn in (partition.default, partition.min_cut) or not joint.plan.tangents:
            chosen = self.partition_fn if joint.plan.tangents else partition.default
            halves: Halves = chosen(joint)
            return halves
        module = joint.traced.to_module()
        returned = self.partition_fn(module, _examples(joint.traced), num_fwd_outputs=joint.plan.forward_outputs)
        return partition.adopt(joint, *returned)


class _Entry:
    """A compiled function for one layout of arguments."""

    def __init__(self, run: Callable[..., tuple[Any, ...]], places: Sequence[int], out_tree: Any) -> None:
        self.run = run
        self.places = places
        self.out_tree = out_tree

    def __call__(self, leaves: Sequence[Any]) -> Any:
        return pytree.tree_unflatten(self.run(*[leaves[place] for place in self.places]), self.out_tree)


def _compiled(compiler: Compiler, traced: Traced) -> Callable[..., tuple[Any, ...]]:
    made = compiler(traced.to_module(), _examples(traced))
    if not callable(made):
        raise SmeltError("SM002", f"compiler {compiler!r} returned {type(made).__name__}, not a callable")

    def call(*inputs: Any) -> tuple[Any, ...]:
        result = made(*inputs)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    return call


def _examples(traced: Traced) -> list[GhostTensor]:
    return [GhostTensor(tensor_spec(node)) for node in placeholders(traced.graph)]


def _key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return TensorSpec(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, 0, leaf.requires_grad)
    if isinstance(leaf, float | slice):  # 0.0 and -0.0 are equal, and slices have no hash before 3.12
        return (type(leaf), repr(leaf))
    return (type(leaf), leaf)


def _state(mod: torch.nn.Module) -> tuple[dict[str, torch.Tensor], tuple[bool, ...]]:
    """What a module reads besides its arguments: its tensors, and whether each part of it is training."""
    tensors = {**dict(mod.named_parameters()), **dict(mod.named_buffers())}
    return tensors, tuple(part.training for part in mod.modules())


def _lifted(mod: torch.nn.Module) -> Callable[..., Any]:
    """`mod` as a function of its state."""

    def call(state: tuple[dict[str, torch.Tensor], tuple[bool, ...]], *args: Any, **kwargs: Any) -> Any:
        with _replaced(mod, state[0]):
            return mod(*args, **kwargs)

    return call


@contextlib.contextmanager
def _replaced(mod: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Put other tensors in the place of a module's own, wherever it holds them, and take them out again."""
    current, _ = _state(mod)
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
        yield
        if any(held.get(name) is not other for held, name, _own, other in slots):
            raise CannotTrace("the module puts a new tensor in the place of a parameter or buffer")
    finally:
        for held, name, own, _other in slots:
            held[name] = own
