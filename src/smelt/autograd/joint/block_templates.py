"""The joint graph of a repeated block, traced once and written again for each block that equals it.

    block(h0, w1)      runs on fake tensors with autograd on, alone: forward  mm = mm(h, w); relu = relu(mm)
                                                                     backward  of a tangent, for h and w
    block(h1, w2)      is one node of autograd: the forward's calls are written with h1 and w2 for h and w, and the
                       backward's calls when the engine arrives there

A block has a template if that is all it does: it writes nothing, draws no random numbers, returns no alias, and each
input that requires grad gets a gradient. A value that depends on no input of the graph, as a causal mask, is copied
into the template, where it can be looked at, and has to be the same in each block. If a tangent is laid out in another
way than was assumed, or an input was written since, the graph is traced again without templates.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from smelt.autograd.joint.functional_tensors import functional, storage_id, synced
from smelt.autograd.joint.functional_trace import (
    CannotTrace,
    SharingRecorder,
    interpret,
    plain_spec,
    run_engine,
    tangent_spec,
    without_dead_code,
)
from smelt.autograd.joint.ready_queue import ReadyQueue
from smelt.autograd.joint.repeated_blocks import Block, repeated_blocks
from smelt.base.coexist import leave_alone
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import Phase, phase_of
from smelt.ir.graph import GraphLevel, Traced, add_copy
from smelt.ir.nodes.ambient import without_autocast
from smelt.ir.provenance import Origin, origin_of
from smelt.ir.tensorspec import NodeSpec, TensorSpec, spec_of, tensor_spec
from smelt.meta.effects import draws, why_not_share
from smelt.meta.fake_tensor import FakeTensor, FakeTensorError
from smelt.meta.nonleaf import computed

_MAX_TEMPLATES = 2  # of equal blocks: the first may be given a leaf where the others are given what is computed
_MAX_CONSTANT_CALLS = 200  # of a value that depends on no input, as `known_masks` looks at


class NeedsCalls(Exception):
    """A block has to be run call by call after all: retrace the graph without templates."""


class _NoTemplate(Exception):
    """A block does more than a template holds."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """An input of a block as a template depends on it. `constant`: the node it is computed in from no input."""

    spec: TensorSpec
    is_leaf: bool
    constant: fx.Node | None

    @classmethod
    def of(cls, value: Any) -> "_Operand":
        if not isinstance(value, torch.Tensor) or not torch._is_functional_tensor(value):
            raise _NoTemplate
        fake = synced(value)
        spec = TensorSpec.of(fake)
        if spec.varies or fake.node is None or spec.stride != value.stride() or spec.shape != tuple(value.shape):
            raise _NoTemplate
        constant = fake.node if _calls_of_constant(fake.node) is not None else None
        return cls(replace(spec, requires_grad=value.requires_grad), value.is_leaf, constant)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a template, and those of its results that are nodes of their own, by position."""

    node: fx.Node
    spec: NodeSpec
    parts: tuple[tuple[int, fx.Node], ...]


@dataclass(frozen=True, slots=True)
class _Template:
    """`forward` and `backward` are calls over `inputs`, `tangent` and nodes of `shared`, which all blocks have.

    `order` has the positions of the inputs that require grad, in the order in which autograd is given them: so their
    gradients arrive as they do call by call. `reused`: the values of the forward that the backward recomputes.
    """

    operands: list[_Operand]
    inputs: list[fx.Node]
    shared: dict[fx.Node, fx.Node]
    forward: tuple[_Call, ...]
    backward: tuple[_Call, ...]
    reused: tuple[fx.Node, ...]
    output: fx.Node
    tangent: fx.Node | None
    gradients: dict[int, fx.Node]
    order: tuple[int, ...]


class BlockTemplates:
    """The repeated blocks of a graph that is run, and their templates, each made at the first block."""

    def __init__(self, graph: fx.Graph, recorder: SharingRecorder) -> None:
        groups = [] if recorder.has_replaced_operators else repeated_blocks(graph)
        self._recorder = recorder
        self._blocks = {block.calls[0]: (block, group) for group, blocks in enumerate(groups) for block in blocks}
        self._templates: dict[int, list[_Template | None]] = {}

    def run_at(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[Block, Any] | None:
        """The block that begins with a call and its output, its calls written; None if the call has to be run."""
        if node not in self._blocks:
            return None
        block, group = self._blocks[node]
        try:
            inputs = [values[each] for each in block.inputs]
            with torch._C.DisableTorchFunction():
                operands = list(map(_Operand.of, inputs))
        except (KeyError, _NoTemplate):
            return None
        templates = self._templates.setdefault(group, [])
        template = next((each for each in templates if each is not None and each.operands == operands), None)
        if template is None and len(templates) < _MAX_TEMPLATES:
            template = self._traced(block, operands)
            templates.append(template)
        if template is None:
            return None
        with torch._C.DisableTorchFunction():
            return block, _Run(self._recorder, template, block, inputs).output()

    def _traced(self, block: Block, operands: Sequence[_Operand]) -> _Template | None:
        if _get_current_dispatch_mode() is not self._recorder:
            return None
        try:
            with _pop_mode_temporarily(), SharingRecorder(self._recorder.decompositions) as recorder:
                return _trace(block, operands, recorder)
        except (_NoTemplate, FakeTensorError, CannotTrace):
            return None
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return None  # it is raised again, with what belongs to it, where the calls are run


class _Run:
    """A block that is written by its template."""

    def __init__(
        self, recorder: SharingRecorder, template: _Template, block: Block, inputs: Sequence[torch.Tensor]
    ) -> None:
        self._recorder = recorder
        self._template = template
        self._inputs = inputs
        self._images = {**template.shared, **dict(zip(template.inputs, map(_node_of, inputs), strict=True))}
        self._origins = [Origin(node.name, node.stack_trace or "") for node in block.calls]

    def output(self) -> torch.Tensor:
        template = self._template
        self._write(template.forward)
        make = functools.partial(self._fake, template.output)
        if template.tangent is None:
            return make()
        output: torch.Tensor = _apply(self, make, *(self._inputs[place] for place in template.order))
        return output

    def gradients(self, tangent: torch.Tensor) -> list[torch.Tensor]:
        """The backward's calls, for a gradient that has arrived."""
        template, fake = self._template, synced(tangent)
        assert template.tangent is not None
        if TensorSpec.of(fake) != tensor_spec(template.tangent) or fake.node is None:
            raise NeedsCalls
        self._images[template.tangent] = fake.node
        self._write(template.backward)
        self._recorder.reuse([self._images[node] for node in template.reused])
        return [self._fake(template.gradients[place]) for place in template.order]

    def _fake(self, node: fx.Node) -> torch.Tensor:
        return functional(self._recorder.fake_of(self._images[node], tensor_spec(node)))

    def _write(self, calls: Sequence[_Call]) -> None:
        images, recorder = self._images, self._recorder
        for call in calls:
            node = call.node
            recorder.origin = self._origins[node.meta[_PLACE]] if _PLACE in node.meta else None
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), images.__getitem__)
            results = recorder.write_shared(node.target, args, kwargs, call.spec)
            if isinstance(call.spec, tuple):
                for place, part in call.parts:
                    image = results[place]
                    assert image is not None
                    images[part] = image
            else:
                assert results[0] is not None
                images[node] = results[0]
        recorder.origin = None


_PLACE = "smelt_block_place"  # of a node in a template: which call of the block it was recorded for


@leave_alone
class _BlockFunction(torch.autograd.Function):
    """A block as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, run: _Run, make: Callable[[], torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*run._inputs)
        ctx.run = run
        return make()

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> Any:
        try:
            saved = ctx.saved_tensors
        except RuntimeError:
            saved = None  # it was written since, or is freed: call by call that may be an error
        if saved is None or torch.is_grad_enabled():
            raise NeedsCalls
        if tangent is None:
            return None, None, *(None for _ in ctx.run._template.order)
        return None, None, *ctx.run.gradients(tangent)


# `Function.apply` without its preparations for `torch.func`, which is not on here.
_apply: Callable[..., Any] = super(torch.autograd.Function, _BlockFunction).apply


def _node_of(value: torch.Tensor) -> fx.Node:
    node = synced(value).node
    assert node is not None
    return node


def _calls_of_constant(node: fx.Node) -> list[fx.Node] | None:
    """What a value is computed by, each call after those that it reads; None if it depends on an input, or is too
    large a computation to look at."""
    calls: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        each = pending[-1]
        if each.op != "call_function" or len(pending) + len(calls) > _MAX_CONSTANT_CALLS or draws(each):
            return None
        missing = [source for source in each.all_input_nodes if source not in calls]
        if missing:
            pending.append(missing[0])
        else:
            calls[pending.pop()] = None
    return list(calls)


def _trace(block: Block, operands: Sequence[_Operand], recorder: SharingRecorder) -> _Template:
    """Run a block alone, on inputs of its own, then its backward."""
    shared: dict[fx.Node, fx.Node] = {}
    fakes: list[FakeTensor] = []
    for place, operand in enumerate(operands):
        if operand.constant is None:
            fakes.append(recorder.placeholder(f"input_{place}", plain_spec(operand.spec)))
            continue
        node = _copied_constant(recorder.graph, operand.constant, shared)
        fakes.append(recorder.fake_of(node, plain_spec(operand.spec)))
    leaves = [functional(fake).requires_grad_(each.spec.requires_grad)
              for fake, each in zip(fakes, operands, strict=True)]  # fmt: skip
    # What is computed in the graph is not a leaf here either: autocast remembers casts of leaves.
    inputs = [leaf if each.is_leaf else computed(leaf, functools.partial(functional, fake))
              for leaf, fake, each in zip(leaves, fakes, operands, strict=True)]  # fmt: skip
    versions = [each._version for each in inputs]
    (output,) = interpret(_as_graph(block), inputs, {})
    untouched = all(
        synced(each) is fake and each._version == version and each.requires_grad is operand.spec.requires_grad
        for each, fake, version, operand in zip(inputs, fakes, versions, operands, strict=True)
    )
    if not untouched or not isinstance(output, torch.Tensor) or not torch._is_functional_tensor(output):
        raise _NoTemplate
    if output._is_view() or storage_id(output) in set(map(storage_id, inputs)):
        raise _NoTemplate
    value = _node_of(output)
    tangent, gradients, order = None, dict[int, fx.Node](), tuple[int, ...]()
    if output.requires_grad:
        tangent = recorder.placeholder("tangent", tangent_spec(value))
        arriving = functional(tangent)
        gradients, order = _differentiated(recorder, output, arriving, leaves, operands)
        if synced(arriving) is not tangent:
            raise _NoTemplate
    recorder.output([value, *gradients.values()])
    _refuse_what_is_no_template(recorder)
    graph = without_dead_code(recorder.graph, {}).graph
    numbers = {node.name: place for place, node in enumerate(block.calls)}
    forward, backward, reused = list[_Call](), list[_Call](), list[fx.Node]()
    for node in graph.nodes:
        if node.op != "call_function" or node in shared:
            continue
        origin = origin_of(node)
        if origin is not None and origin.node in numbers:
            node.meta[_PLACE] = numbers[origin.node]
        if phase_of(node) is Phase.BOTH:
            reused.append(node)
        if node.target is not operator.getitem:
            spec = spec_of(node)
            parts = tuple((part.args[1], part) for part in node.users) if isinstance(spec, tuple) else ()
            (backward if phase_of(node) is Phase.BACKWARD else forward).append(_Call(node, spec, parts))
    return _Template(
        list(operands),
        list(map(recorder.node_of, fakes)),
        shared,
        tuple(forward),
        tuple(backward),
        tuple(reused),
        value,
        None if tangent is None else tangent.node,
        gradients,
        order,
    )


def _copied_constant(graph: fx.Graph, node: fx.Node, shared: dict[fx.Node, fx.Node]) -> fx.Node:
    """A copy of a value that depends on no input, and of what computes it. `shared`: originals by their copies."""
    copies = {original: copy for copy, original in shared.items()}
    for each in _calls_of_constant(node) or ():
        if each not in copies:
            copies[each] = add_copy(graph, each, copies.__getitem__)
            shared[copies[each]] = each
    return copies[node]


def _as_graph(block: Block) -> Traced:
    """A block as a graph, its nodes named as they are in the whole."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for place, node in enumerate(block.inputs):
        copies[node] = graph.placeholder(f"smelt_input_{place}")
    for node in block.calls:
        copies[node] = add_copy(graph, node, copies.__getitem__)
    graph.output((copies[block.output],))
    return Traced(graph, GraphLevel.TORCH, {})


def _differentiated(
    recorder: SharingRecorder,
    output: torch.Tensor,
    tangent: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    operands: Sequence[_Operand],
) -> tuple[dict[int, fx.Node], tuple[int, ...]]:
    """The gradients of the inputs that require grad, and the order in which autograd is to be given those."""
    wanted = [place for place, operand in enumerate(operands) if operand.spec.requires_grad]
    arrivals: list[int] = []
    for place in wanted:
        leaf: Any = leaves[place]
        leaf.register_hook(functools.partial(_note, arrivals, place))
    recorder.phase = Phase.BACKWARD
    with without_autocast():
        results = run_engine((output,), (tangent,), tuple(leaves[place] for place in wanted))
    gradients: dict[int, fx.Node] = {}
    for place, gradient in zip(wanted, results, strict=True):
        if gradient is None or not torch._is_functional_tensor(gradient):
            raise _NoTemplate
        gradients[place] = _node_of(gradient)
    last = [place for place in wanted if not operands[place].is_leaf]
    return gradients, tuple(_pushed([place for place in arrivals if operands[place].is_leaf], last))


def _note(arrivals: list[int], place: int, gradient: torch.Tensor) -> None:
    arrivals.append(place)


def _pushed(leaves: Sequence[int], others: Sequence[int]) -> list[int]:
    """The order in which to push leaves, so that the engine takes them in this order; others come after them."""
    ready = ReadyQueue()
    for place in range(len(leaves)):
        ready.push(place, 1)
    for place in range(len(others)):
        ready.push(len(leaves) + place, 0)
    order = {ready.pop(): leaf for leaf in leaves}
    return [*(order[place] for place in range(len(leaves))), *others]


def _refuse_what_is_no_template(recorder: SharingRecorder) -> None:
    if recorder.constants or not recorder.is_plain:
        raise _NoTemplate
    calls = [node for node in recorder.graph.nodes if node.op == "call_function"]
    if any(why_not_share(node) is not None or recorder.is_checked(node.target) for node in calls):
        raise _NoTemplate
