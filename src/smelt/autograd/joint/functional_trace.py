"""Running a torch-level graph on fake tensors, functionalized, into one recorder.

    relu_(x.view(-1)); return x          view = view(primals_1, [-1]); relu = relu(view); view_1 = view(relu, [2, 3])

PyTorch's own functionalization sits between autograd and the recorder: autograd sees mutations and aliases, the
recorder sees functional operators. Common subexpressions are shared while recording: `sin(x)` called twice is one node,
and `detach`, which means nothing in a pure graph, is none.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils.checkpoint import SelectiveCheckpointContext

from smelt.autograd.joint.bernoulli_order import bernoulli
from smelt.autograd.joint.decomposition_templates import DecompositionTemplate, TemplateLog, call_of
from smelt.autograd.joint.distributed_calls import below_dtensors, traced_call
from smelt.autograd.joint.functional_tensors import synced
from smelt.autograd.joint.opaque import watch
from smelt.autograd.joint.repeated_blocks import Block
from smelt.base.errors import SmeltError
from smelt.base.torch_originals import BASE, METHODS_OF_C, call_method
from smelt.ir import provenance
from smelt.ir.call_contract import Phase, RecomputePolicy, phase_of, set_phase, set_recompute_policy
from smelt.ir.graph import GraphLevel, Traced, call_key, output_node
from smelt.ir.nodes import backward_node
from smelt.ir.nodes.backward_node import running_backward, set_backward
from smelt.ir.nodes.checkpoint import Checkpoint, Policy
from smelt.ir.nodes.distributed import DistributedCall
from smelt.ir.tensorspec import NodeSpec, NumberSpec, TensorSpec, spec_of, tensor_spec
from smelt.meta.effects import QUIET_WRITE, effect_of, is_view, why_not_drop
from smelt.meta.fake_tensor import FakeTensor, FakeTensorError, Recorder
from smelt.meta.replaced_operators import replaced_operators, why_none_compile, why_replaced
from smelt.symbolic.expressions import COMPUTED
from smelt.symbolic.shapes import contiguous_stride, is_dense, span
from smelt.symbolic.symnode import Formula, apply, is_symbolic, surely_equal

aten = torch.ops.aten

Decompositions = Mapping[Any, Callable[..., Any]]

# Operators that take a storage offset, and the position of that argument.
STORAGE_OFFSETS = {aten.as_strided.default: 3, aten.as_strided_copy.default: 3, aten.as_strided_scatter.default: 4}

# Operators that return their argument. They mean nothing inside a pure graph.
IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.lift.default, aten.lift_fresh.default})

# Backwards that read a workspace of their forward, which the forward allocates only when autograd records it.
_READ_WORKSPACES = frozenset({aten.mkldnn_rnn_layer_backward.default})


class CannotTrace(SmeltError):
    """This graph cannot be functionalized correctly; `reason` says why. The caller falls back to eager."""

    def __init__(self, reason: str) -> None:
        super().__init__("SM020", reason)
        self.reason = reason


class SharingRecorder(Recorder):  # type: ignore[no-untyped-call]
    """A recorder in which equal calls are one node; each node knows in which phase it was recorded."""

    def __init__(self, decompositions: Decompositions | None = None) -> None:
        self.decompositions = decompositions
        ours: Decompositions = {aten.bernoulli.p: bernoulli, aten.as_strided_scatter.default: _scatter_all}
        super().__init__({**ours, **(decompositions or {})})
        kinds = (torch._ops.OpOverload, str)
        self.functions = {f: new for f, new in (decompositions or {}).items() if not isinstance(f, kinds)}
        self._replaced = replaced_operators()
        if self._replaced:
            _refuse(why_none_compile(self._replaced))
            self.functions = {}  # every operator that eager calls is to be seen
        self.phase = Phase.FORWARD
        self.origin: provenance.Origin | None = None  # of what is recorded now, where that is not what runs
        self._recompute_policy: RecomputePolicy | None = None  # of what is recorded now
        self._policy: Policy | None = None
        self._calls: dict[Any, tuple[fx.Node | None, ...]] = {}  # a call's results, by what was called
        self._templates: dict[Any, DecompositionTemplate | None] = {}  # None: each call has to be run
        self._origins, self._backwards = provenance.this_thread(), backward_node.this_thread()

    def take_apart(
        self, func: Any, decomposition: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What the decomposition of an operator made of other tensors of the same layouts is written once more, without
        running it. Those that call each other are one template."""
        called = call_of(func, decomposition, args, kwargs) if self._log is None else None
        if called is None:
            replaced, self._replaced = self._replaced, frozenset()  # eager calls `func`, not what it is made of here
            try:
                return super().take_apart(func, decomposition, args, kwargs)
            finally:
                self._replaced = replaced
        key, fakes = called
        if key not in self._templates:
            self._log = log = TemplateLog(fakes)
            try:
                result = super().take_apart(func, decomposition, args, kwargs)
            finally:
                self._log = None
            self._templates[key] = log.template(result)
            return result
        template = self._templates[key]
        if template is None:
            return super().take_apart(func, decomposition, args, kwargs)
        result = template.written([self.node_of(fake) for fake in fakes], fakes, self.write)
        self._made.append(result)
        return result

    def write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: NodeSpec
    ) -> tuple[fx.Node | None, ...]:
        if func in IDENTITIES:
            return (args[0],)
        effect = effect_of(func, args, kwargs)
        if _is_special(func) or effect == QUIET_WRITE:
            _check(func, args, kwargs, effect)
        if effect is None:
            return self.write_shared(func, args, kwargs, spec)
        return self._write_anew(func, args, kwargs, spec)

    def write_shared(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: NodeSpec
    ) -> tuple[fx.Node | None, ...]:
        """Write a call that does nothing but return its results, unless they are there already."""
        key = call_key(func, args, kwargs)
        known = self._calls.get(key) if key is not None else None
        if known is not None:
            self.reuse(known)
            return known
        parts = self._write_anew(func, args, kwargs, spec)
        if key is not None:
            self._calls[key] = parts
        return parts

    def _write_anew(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: NodeSpec
    ) -> tuple[fx.Node | None, ...]:
        parts = super().write(func, args, kwargs, spec)
        nodes = [part for part in parts if part is not None]
        here = self.origin or provenance.current(self._origins)
        backward = running_backward(self._backwards)
        for node in nodes:
            for each in (node, node.all_input_nodes[0]) if node.target is operator.getitem else (node,):
                set_phase(each, self.phase)
                provenance.set_origin(each, here)
                if backward is not None:
                    set_backward(each, backward)
                if self._recompute_policy is not None and self.phase is Phase.FORWARD:
                    set_recompute_policy(each, self._recompute_policy)
        return parts

    @property
    def has_replaced_operators(self) -> bool:
        """Whether the program has replaced operators of PyTorch, so that each call is looked at."""
        return bool(self._replaced)

    @staticmethod
    def is_checked(func: Any) -> bool:
        """Whether calls of an operator may be refused for what they are given."""
        return func in IDENTITIES or (func is not operator.getitem and _is_special(func))

    @property
    def is_plain(self) -> bool:
        """Whether nothing but calls was recorded: no numbers, and no sparse tensors."""
        return not self._given and not self._sparse

    def fake_of(self, node: fx.Node, spec: TensorSpec) -> FakeTensor:
        """Another fake tensor for a node of the graph."""
        fake = FakeTensor(spec, node)
        self._made.append(fake)
        return fake

    def region(self, checkpoint: Checkpoint, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run a checkpointed region.

        Its results are saved, not recomputed: that would recompute the region, the one before it, and so on.
        """
        before = self._recompute_policy, self._policy
        self._recompute_policy, self._policy = RecomputePolicy.RECOMPUTE, checkpoint.policy
        try:
            results = interpret(checkpoint.body, inputs, {})
        finally:
            self._recompute_policy, self._policy = before
        for result in results:
            if isinstance(result, torch.Tensor):
                self._mark_result(synced(result).node)
        return tuple(results)

    def _number(self, fake: FakeTensor) -> Any:
        """The value of `item()`: a symbolic float."""
        if not fake.dtype.is_floating_point or fake.node is None:
            raise FakeTensorError("item() depends on data")
        known = self._calls.get((aten._local_scalar_dense.default, fake.node))
        if known is None:
            spec = NumberSpec(Formula(None, (), 2.0, f"{fake.node.name}.item()", COMPUTED))
            known = self._calls[(aten._local_scalar_dense.default, fake.node)] = self.number_in(fake.node, spec)
        return known

    def _mark_result(self, node: fx.Node | None) -> None:
        """Set the policy of a region's result, and of its base if it is a view."""
        while node is not None and node.op == "call_function":
            set_recompute_policy(node, self._recompute_policy or RecomputePolicy.SAVED)
            parent = node.args[0] if is_view(node.target) or node.target is operator.getitem else None
            node = parent if isinstance(parent, fx.Node) else None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._replaced and self._log is None:
            _refuse(why_replaced(func, self._replaced))
        if func is aten._local_scalar_dense.default:
            return self._number(args[0])
        if self._policy is None or self.phase is not Phase.FORWARD:
            return super().__torch_dispatch__(func, types, args, kwargs)
        policy, recompute_policy = self._policy, self._recompute_policy
        self._policy = None  # the decomposition of the operator follows its policy
        try:
            chosen = policy(SelectiveCheckpointContext(is_recompute=False), func, *args, **(kwargs or {}))
            recompute = chosen is False or "RECOMPUTE" in str(chosen)
            self._recompute_policy = RecomputePolicy.RECOMPUTE if recompute else RecomputePolicy.SAVED
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._policy, self._recompute_policy = policy, recompute_policy

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        if tensor.requires_grad:
            raise CannotTrace("a tensor that requires grad is used without being an input")
        if torch._is_functional_tensor(tensor):
            raise CannotTrace("an operator is run where functionalization does not see it")  # it has no data
        return super()._constant(tensor)

    def reuse(self, known: Sequence[fx.Node | None]) -> None:
        """The backward recomputes values that are in the graph already."""
        for node in known:
            if node is not None and self.phase is Phase.BACKWARD and phase_of(node) is Phase.FORWARD:
                set_phase(node, Phase.BOTH)
                if node.target is operator.getitem:
                    set_phase(node.all_input_nodes[0], Phase.BOTH)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise CannotTrace(reason)


@functools.cache
def _is_special(func: Any) -> bool:
    """Whether there is something to check of an operator's calls."""
    checked = (aten.view_as_real.default, *_READ_WORKSPACES, *STORAGE_OFFSETS)
    return func._schema.is_mutable or func in checked


def _check(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], effect: str | None) -> None:
    """Refuse a call that a pure graph cannot have."""
    if func._schema.is_mutable or effect == QUIET_WRITE:
        raise CannotTrace(f"{func} {effect} below functionalization")
    if func in _READ_WORKSPACES:
        raise CannotTrace(f"{func} reads a workspace that its forward allocates only under autograd")
    if func is aten.view_as_real.default and is_lazy_conjugate(args[0]):
        raise CannotTrace("view_as_real of a lazily conjugated tensor")
    if func in STORAGE_OFFSETS:
        _check_storage_offset(func, args, kwargs)


def _scatter_all(base: torch.Tensor, values: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """`as_strided_scatter` that overwrites every element of a vector: the values themselves, permuted.

    It is part of the derivative of pooling to one element, which restrides its result in dimensions of size one.
    """
    if base.dim() != 1 or base.stride() != (1,) or base.storage_offset() or storage_offset:
        return NotImplemented
    order = sorted(range(len(size)), key=lambda dimension: (size[dimension] == 1, -stride[dimension]))
    step = 1
    for dimension in reversed(order):
        if size[dimension] != 1 and stride[dimension] != step:
            return NotImplemented
        step *= size[dimension]
    return values.permute(order).reshape(base.shape) if step == base.numel() else NotImplemented


def _check_storage_offset(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a storage offset into memory that moves from call to call, an input's or the arena, and a view that
    reaches outside of a value that the graph computes: PyTorch raises there, and the arena holds other values.

    `as_strided` of a value that the graph computes is a view like any other; the others would be library calls.
    """
    position = STORAGE_OFFSETS[func]
    named = {**dict(zip(("size", "stride", "storage_offset"), args[position - 2 :], strict=False)), **kwargs}
    offset, root = named.get("storage_offset"), _memory_of(args[0])
    if offset is not None and (func is not aten.as_strided.default or root.op != "call_function"):
        raise CannotTrace(f"{func} takes a storage offset into memory that the graph does not own")
    seen, value = tensor_spec(args[0]), tensor_spec(root)
    unit, units = seen.dtype.itemsize, value.dtype.itemsize
    first = seen.offset if offset is None else offset
    after = first + span(tuple(named["size"]), tuple(named["stride"]))
    room = value.offset + span(value.shape, value.stride)
    if root.op == "call_function" and (first * unit < value.offset * units or after * unit > room * units):
        raise CannotTrace(f"{func} reaches outside of its base")


def _memory_of(node: fx.Node) -> fx.Node:
    """The base of a chain of views: an input, or a value that the graph computes."""
    while True:
        source: Any = node.args[0] if node.target is operator.getitem else node
        if not is_view(source.target):
            return node
        node = source.args[0]


def is_lazy_conjugate(node: fx.Node) -> bool:
    """Whether a node is lazily conjugated. Fake tensors do not know."""
    while is_view(node.target) and node.target is not aten._conj.default:
        node = node.all_input_nodes[0]
    return node.target is aten._conj.default


def _is_float(node: fx.Node) -> bool:
    """Whether a node computes a float from numbers."""
    spec = spec_of(node)
    return isinstance(spec, NumberSpec) and isinstance(spec.what, Formula) and node.op == "call_function"


Strides = list[tuple[torch.Tensor, tuple[int, ...]]]


def _mutated(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Strides:
    """Tensors that a call mutates by its name, `x.masked_fill_(…)`, `torch.relu_(x)`, `out=`, with their strides."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__") and not _is_inplace_view(name)
    candidates = [*(args[:1] if named else ()), kwargs.get("out")]
    return [(each, each.stride()) for each in candidates if isinstance(each, torch.Tensor)]


@functools.cache
def _is_inplace_view(name: str) -> bool:
    """Whether a method changes sizes and strides only, and no memory: `x.t_()`."""
    packet = getattr(aten, name, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    return any(torch.Tag.inplace_view in overload.tags for overload in overloads)


def _restore_strides(mutated: Strides) -> None:
    """Give mutated tensors the strides they had. Functionalization replaces them by the result of the out-of-place
    operator, which may be laid out differently: `masked_fill` returns a contiguous tensor."""
    for tensor, stride in mutated:
        if not torch._is_functional_tensor(tensor) or tensor.dim() != len(stride):
            continue
        shape, now = tuple(tensor.shape), synced(tensor).stride()
        if all(map(surely_equal, now, stride)) or not is_dense(shape, stride):
            continue
        order = sorted(range(len(shape)), key=lambda dim: (stride[dim], shape[dim]), reverse=True)
        with torch.no_grad():
            rows = BASE.clone(tensor.permute(order), memory_format=torch.contiguous_format)
            restored = synced(rows.permute([order.index(dim) for dim in range(len(shape))]))
        torch._functionalize_replace(tensor, restored)
        torch._functionalize_commit_update(tensor)


class BlockRunner(Protocol):
    """Knows the value of a block of nodes without running them."""

    def run_at(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[Block, Any] | None: ...


def interpret(
    traced: Traced, inputs: Sequence[Any], constants: Mapping[str, Any], blocks: BlockRunner | None = None
) -> list[Any]:
    """Run a torch-level graph node by node. Values are freed after their last use."""
    values: dict[fx.Node, Any] = {}
    skipped: set[fx.Node] = set()
    waiting = {node: len(node.users) for node in traced.graph.nodes}
    remaining = iter(inputs)

    def look_up(node: fx.Node) -> Any:
        return values[node]

    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = constants[node.target]
        elif node.op == "output":
            break
        elif node in skipped:
            pass
        elif blocks is not None and (known := blocks.run_at(node, values)) is not None:
            block, values[block.output] = known
            skipped.update(block.calls)
            for used in (*block.inputs, block.output):
                waiting[used] -= len(used.users.keys() & set(block.calls))
                if waiting[used] == 0:
                    del values[used]
        else:
            provenance.running(node)
            args = map_arg(node.args, look_up)
            kwargs = map_arg(node.kwargs, look_up)
            mutated = _mutated(node, args, kwargs)
            if _is_float(node) and any(map(is_symbolic, args)):
                result = apply(node.target, *args)  # PyTorch's own operators would ask for the values
            elif node.op == "call_method" or type(node.target) in METHODS_OF_C:
                result = call_method(node.target, *args, **kwargs)
            elif isinstance(node.target, DistributedCall):
                result = traced_call(node.target, args)
            else:
                result = node.target(*args, **kwargs)
                watch(node.target, result)
            if mutated:
                _restore_strides(mutated)
            if node.users:
                values[node] = result
            for used in node.all_input_nodes:
                waiting[used] -= 1
                if waiting[used] == 0:
                    del values[used]
    returned = map_arg(output_node(traced.graph).args[0], look_up)
    return list(returned) if isinstance(returned, tuple | list) else [returned]


@contextlib.contextmanager
def functionalized(graph: Traced | None) -> Iterator[None]:
    """Within, operators on functional tensors reach the modes below as functional operators."""
    torch._enable_functionalization(reapply_views=True)
    try:
        with below_dtensors(graph.graph if graph is not None else None):
            yield
    finally:
        torch._disable_functionalization()  # type: ignore[no-untyped-call]


def plain_spec(spec: TensorSpec) -> TensorSpec:
    """As a pure graph sees a tensor: without `requires_grad`."""
    return replace(spec, requires_grad=False) if spec.requires_grad else spec


def without_dead_code(graph: fx.Graph, constants: Mapping[str, torch.Tensor]) -> Traced:
    """A pure graph without dead code. Random operators stay, so that the random state advances as in eager."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr" or why_not_drop(node) is None:
            graph.erase_node(node)
    used = {node.target for node in graph.nodes if node.op == "get_attr"}
    return Traced(graph, GraphLevel.PURE, {name: tensor for name, tensor in constants.items() if name in used})


def run_engine(
    outputs: tuple[torch.Tensor, ...], tangents: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` without its checks of the tangents, which import sympy (half a second and more)."""
    keep_graph, create_graph, allow_unused = False, False, True
    gradients: tuple[torch.Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
        outputs, tangents, keep_graph, create_graph, inputs, allow_unused, accumulate_grad=False
    )
    return gradients


def tangent_spec(node: fx.Node) -> TensorSpec:
    """Tangents have the layout of their result, or are contiguous if that result is not dense."""
    spec = tensor_spec(node)
    stride = spec.stride if is_dense(spec.shape, spec.stride) else contiguous_stride(spec.shape)
    return TensorSpec(spec.shape, stride, spec.dtype, spec.device)
