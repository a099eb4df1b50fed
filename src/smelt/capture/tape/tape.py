"""The graph under construction: tensor calls become `torch.fx` nodes, and run on fake tensors for their metadata.

tape.call("call_function", torch.relu, (x,), {})   →   Tensor(node relu, fake tensor f32[2, 3])
"""

import operator
from collections.abc import Iterator as IteratorABC
from collections.abc import Sequence as SequenceABC
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._device import _device_constructors

from smelt.base.torch_originals import held_by, is_own, method
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.source import Source
from smelt.capture.model.values import (
    Constant,
    Number,
    Sequence,
    Slots,
    Tensor,
    Value,
    is_constant,
    of_number,
)
from smelt.capture.tape.autograd_history import Histories
from smelt.capture.tape.constant_tensors import constant_item
from smelt.capture.tape.data_sizes import DataSizes, OtherSizes
from smelt.capture.tape.device_numbers import chosen_kinds, current_number, numbered
from smelt.capture.tape.graph_arguments import graph_argument
from smelt.capture.tape.graph_effects import GraphEffects
from smelt.capture.tape.made_leaves import MadeLeaves
from smelt.capture.tape.memory import Memory
from smelt.capture.tape.region import Region
from smelt.capture.tape.small_sizes import Refit
from smelt.capture.tape.uniform_bounds import decided
from smelt.device.host_library import HOST, on_host
from smelt.ir.graph import add_node
from smelt.ir.nodes.ambient import Ambient, forget_casts, set_autocast, setting_attention
from smelt.ir.nodes.checkpoint import Checkpoint
from smelt.ir.nodes.custom_backward import Derivative
from smelt.ir.symbolic_numbers import NumberWriter
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of, spec_of_value, tensor_spec
from smelt.meta.fake_tensor import FakeTensor, FakeTensorError
from smelt.meta.nonleaf import computed
from smelt.meta.symbolic_decomps import spell_out
from smelt.symbolic.expressions import COMPUTED, FROM_DATA, DataDependent, Expression, ShapeEnv, Symbol
from smelt.symbolic.symnode import Formula, as_number, is_symbolic

aten = torch.ops.aten

# What makes a tensor of a shape and of numbers that are known before.
_PREALLOCATABLE = frozenset(
    {torch.zeros_like, torch.ones_like, torch.full_like, torch.zeros, torch.ones, torch.full, torch.tensor}
)


# What yields the same whatever the sizes of a tensor are, or a size in symbols.
_SURE = frozenset({"size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point", "is_complex",
                   "get_device", "shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_leaf", "itemsize",
                   torch.numel, torch.is_floating_point, torch.is_complex, torch.is_tensor})  # fmt: skip

# What yields nothing and may stop the program, or the device, at this place.
_CHECKS = frozenset({torch._assert_async, aten._assert_async, aten._assert_async.default, aten._assert_async.msg})


class Tape:
    """An `fx.Graph` that grows as capture interprets, and can take back what one instruction added."""

    def __init__(self, ambient: Ambient | None = None) -> None:
        self.graph = fx.Graph()
        self.inputs: dict[fx.Node, Source] = {}
        self._by_fake: dict[int, Tensor] = {}
        self.memory = Memory(self._by_fake)
        self.effects = GraphEffects(self.memory)
        self.leaves = MadeLeaves()
        self.place = ""
        self.callers: tuple[tuple[str, int], ...] = ()  # of the current instruction, where somebody wants to know
        self.called_from: dict[fx.Node, tuple[tuple[str, int], ...]] = {}
        self.line = 0
        self.requires_no_overlap = False  # whether it is right only if no inputs overlap: see `WritePolicy`
        self.methods: set[tuple[type, str]] = set()  # of tensors, which the graph finds by name
        self.current_devices: dict[str, int] = {}  # kinds of devices that were named without a number: the current one
        self.deciding: set[fx.Node] = set()  # nodes whose values, which nothing from outside is part of, were relied on
        self.ambient = ambient or Ambient.now()  # what the captured code has made of it
        self._entry = self.ambient
        self.inferred: set[fx.Node] = set()  # what yields tensors of an inference mode entered on the way
        self._synced_ambient = self.ambient  # what the nodes so far have made of it
        self._before = (self.ambient, self.ambient, self.effects.collectives)
        self.regions: dict[fx.Graph, Region] = {}
        self.lifted: dict[Any, Tensor | Number] = {}  # of an outer graph: there is none
        self.once = False  # whether what is captured says of itself that it cannot be differentiated
        self.formatted: list[Tensor] = []  # whose numbers are made strings when the graph has run
        self.distributed: dict[fx.Node, Any] = {}  # inputs that are the local tensors of `DTensor`s
        self.data_sizes: DataSizes | None = None  # where sizes that only data tell are part of the graph
        self._last_input: fx.Node | None = None
        self._items: dict[Any, fx.Node] = {}
        self._inputs_by_id: dict[int, list[tuple[fx.Node, Tensor]]] = {}
        self.histories = Histories()
        self._places: dict[Source, fx.Node] = {}
        self._numbers = NumberWriter(self.graph, self._number, lambda node: self._added.append(node))
        self._added: list[fx.Node] = []
        self._rewritten: list[tuple[Tensor, fx.Node]] = []

    def release(self) -> None:
        """Let go of the program's tensors now: a tape holds on to itself, and the collector is slow."""
        met = (value for places in self._inputs_by_id.values() for _, value in places)
        for value in (*met, *self.distributed.values()):
            value.real = value.state = None
        self.memory.release()
        self.leaves.release()
        by_id = (self._inputs_by_id, self._by_fake)
        for table in (*by_id, self.inputs, self._places, self.lifted, self.distributed):
            table.clear()

    def begin(self) -> None:
        """A new instruction starts: from here `rollback_to` undoes."""
        if self._added or self._rewritten:
            self._added.clear()
            self._rewritten.clear()
        self._before = (self.ambient, self._synced_ambient, self.effects.collectives)
        self.effects.raises_late = ""

    @property
    def computes(self) -> bool:
        """Whether anything is computed yet."""
        return any(node.op != "placeholder" for node in self.graph.nodes)

    @property
    def grew(self) -> bool:
        """Whether nodes were added since `begin`."""
        return bool(self._added)

    def rollback_to(self) -> None:
        """Erase the nodes added since `begin`, newest first."""
        for value, before in reversed(self._rewritten):
            value.node = before
        for node in reversed(self._added):
            self.graph.erase_node(node)
        self._numbers.forget(self._added)
        if self.data_sizes is not None:
            self.data_sizes.forget(self._added)
        self._added.clear()
        ambient, self._synced_ambient, self.effects.collectives = self._before
        self.set_ambient(ambient)

    def _placeholder(self, text: str) -> fx.Node:
        """A new input of the graph, behind those there are."""
        first = next(iter(self.graph.nodes), None)
        name = "".join(letter if letter.isalnum() else "_" for letter in text).strip("_") or "input"
        after = self._last_input
        with self.graph.inserting_after(after) if after is not None else self.graph.inserting_before(first):
            node = self.graph.placeholder(name)
            node.target = node.name  # self.a.b and self.a_b are two inputs
        self._last_input = node
        return node

    def _input(self, source: Source) -> fx.Node:
        node = self._placeholder(source.text)
        self.inputs[node] = source
        self._places[source] = node
        return node

    def _number(self, leaf: Symbol | Formula) -> fx.Node:
        """The node of a size or a stride of an input, or the placeholder of a number from outside."""
        if leaf.origin is FROM_DATA:
            assert self.data_sizes is not None and isinstance(leaf, Symbol)
            read = self.data_sizes.read(self.graph, leaf)
            self._added += read if read[-1].op == "call_method" else []
            return read[-1]
        source, what, dim = leaf.origin
        if what != "number":
            node = self._method(what, self._places[source], dim)
            self._added.append(node)
            return node
        if source not in self._places:
            set_spec(self._input(source), NumberSpec(Expression.of(leaf) if isinstance(leaf, Symbol) else leaf))
        return self._places[source]

    def _method(self, name: str, *args: Any) -> fx.Node:
        if self._is_replaced(name, Constant(None)):
            return self.graph.call_function(method(name), args)
        return self.graph.call_method(name, args)

    def input(self, tensor: torch.Tensor, source: Source, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> Tensor:
        """A tensor from outside becomes a placeholder; symbols may stand in its shape and strides."""
        self._refuse_changed_alias(tensor, 1)
        node = self._input(source)
        spec = replace(TensorSpec.of(tensor), shape=shape, stride=stride)
        set_spec(node, spec)
        fake: Any = FakeTensor(spec)
        if spec.requires_grad and not tensor.is_leaf:
            fake = computed(fake, lambda: FakeTensor(replace(spec, requires_grad=False)))
        value = Tensor(node, fake, type(tensor), tensor, source=source)
        self._by_fake[id(value.fake)] = value
        self.memory.add_input(node, fake)
        met = self._inputs_by_id.setdefault(id(tensor), [])
        value.state = met[0][1].state if met else None
        met.append((node, value))
        return value

    def change(self, leaf: Tensor, slots: Slots) -> None:
        """A leaf from outside becomes another tensor when the graph has run, by whatever name it is known."""
        for _, each in self._inputs_by_id[id(leaf.real)]:
            each.state = slots

    def leads_to(self, leaf: Any) -> bool:
        """Whether a backward from something that the graph computed comes to a leaf, and is still possible."""
        fakes = [value.fake for value in self._by_fake.values() if value.fake.grad_fn is not None]
        return self.histories.lead_to(fakes, leaf)

    def _refuse_changed_alias(self, tensor: torch.Tensor | None, names: int) -> None:
        """Refuse a tensor of so many names that came to require grad, or to have another shape, by one of them: each
        has a fake tensor of its own until the graph is whole, and the others do not know."""
        met = self._inputs_by_id.get(id(tensor), ()) if tensor is not None else ()
        if len(met) >= names and any(metadata_changed(node, value.fake) for node, value in met):
            raise Unsupported("B015", "A write to a tensor that was reached by two names")

    def value_of(self, fake: Any) -> Tensor | None:
        """The tensor that a fake tensor stands for."""
        return self._by_fake.get(id(fake))

    def values_by_node(self) -> dict[fx.Node, Tensor]:
        """The tensors of the graph by the nodes that yield them."""
        return {value.node: value for value in self._by_fake.values()}

    def known_as(self, value: Tensor) -> None:
        """A tensor will be asked for by its fake tensor."""
        self._by_fake.setdefault(id(value.fake), value)

    def detached_if_freed(self, value: Tensor) -> fx.Node | None:
        """A tensor without its history, if a backward has freed that; None if it has it still."""
        if not value.fake.requires_grad or not self.histories.is_freed(value.fake):
            return None
        node = self._method("detach", self.node_of(value))
        set_spec(node, replace(TensorSpec.of(value.fake), requires_grad=False))
        return node

    def preallocate(self, value: Tensor) -> tuple[fx.Node, Any, tuple[Any, ...], dict[str, Any]] | None:
        """Let a tensor that the graph makes and then writes be an input, if it can be made before the graph runs: the
        new input, and the call that makes it, of constants and inputs."""
        written = () if value.fake.requires_grad else self.memory.nodes_of_written(value.fake)
        nodes = [node for node in written if node.op == "call_function" and node.target in _PREALLOCATABLE]
        if len(nodes) != 1 or nodes[0].graph is not self.graph or nodes[0] in self.inferred:
            return None
        call = (nodes[0].target, nodes[0].args, dict(nodes[0].kwargs))
        arguments = (*call[1], *call[2].values())
        if "out" in call[2] or not all(node in self.inputs and node in arguments for node in nodes[0].all_input_nodes):
            return None
        node = self._placeholder(nodes[0].name)
        set_spec(node, spec_of(nodes[0]))
        nodes[0].replace_all_uses_with(node)
        self.graph.erase_node(nodes[0])
        self.memory.add_input(node, value.fake)
        self.deciding |= {node} if nodes[0] in self.deciding else set()
        return node, *call

    def input_aliases(self) -> list[list[tuple[fx.Node, Tensor]]]:
        """Tensors from outside, each as often as it was met: the input it was made, and what it was known as."""
        return list(self._inputs_by_id.values())

    def call(self, opcode: str, target: Any, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """Record one call and say what it yields. Raises `Unsupported` if only running it could tell."""
        if self.ambient.devices and opcode == "call_function" and target in _device_constructors():
            device = kwargs.get("device", Constant(None))
            if isinstance(device, Constant) and device.value is None:
                kwargs = {**kwargs, "device": Constant(self.ambient.devices[-1])}
        args, kwargs = numbered(target, args, kwargs, self.current_device)
        if target in ("new", torch.Tensor.new) and len(args) == 2:
            size = args[1]
            if isinstance(size, Sequence) and size.kind is torch.Size:
                args = (args[0], *size.items)  # other tuples are data to it, and in a graph there are no others
        fakes = [graph_argument(value, self._fake) for value in args]
        named = {name: graph_argument(value, self._fake) for name, value in kwargs.items()}
        seen = [(tensor, tensor._version) for tensor in _fakes_in((*fakes, *named.values()))]
        collectives = self.effects.collectives
        result = self.run(opcode, target, fakes, named)
        told: list[tuple[Symbol, tuple[int, ...]]] = []
        if self.data_sizes is not None and self.data_sizes.fresh:
            result, told = self.data_sizes.located(result, lambda: self.run(opcode, target, fakes, named))
            self.effects.may_raise()  # the check of the sizes does
        if self.data_sizes is not None and self.effects.communicates and (told or self.data_sizes.defining):
            raise Unsupported("B027", "a size that only data tell beside a collective")
        for kind in chosen_kinds(_fakes_in((result,)), [tensor for tensor, _ in seen], (*args, *kwargs.values())):
            self.current_device(kind)
        written = [self._by_fake[id(tensor)] for tensor, version in seen if tensor._version != version]
        if self.inferred:
            self._refuse_inference_tensors(target, [tensor for tensor, _ in seen], written, result)
        for value in written:
            self._refuse_changed_alias(value.real, 2)
        if self.formatted and any(map(self._is_formatted, written)):
            raise Unsupported("B005", f"{_name_of(target)}, after a tensor was formatted as a string")
        known = self._by_fake.get(id(result)) if isinstance(result, FakeTensor) else None
        if known is not None and not written:
            return known  # x.contiguous() of a contiguous x is x
        if not (args or kwargs) and is_constant(result):
            raise Unsupported("B002", _name_of(target))  # it answers from the process, which no guard asks
        if self.data_sizes is not None and not _is_sure(target, fakes, result):
            self.data_sizes.rely_on_many(size for tensor, _ in seen for size in tensor.shape)
        if not written and is_constant(result) and result is not None:
            return Constant(result)
        if not written and is_symbolic(result):
            return of_number(result)
        if not written and isinstance(result, torch.Size):
            return Sequence(torch.Size, [of_number(size) for size in result])
        if result is None and seen and not written and target not in _CHECKS:
            raise Unsupported("B002", _name_of(target))  # it does something, and not to a tensor
        if told and written:
            raise Unsupported("B004", _name_of(target))
        node = self._record(opcode, target, args, kwargs, result)
        if self.effects.collectives != collectives:
            self.effects.communicating.add(node)
        if told:
            assert self.data_sizes is not None
            self.data_sizes.define(told, node)
        if isinstance(result, FakeTensor) and result.requires_grad and result.is_leaf and known is None:
            self.leaves.add(result)
        if target is getattr and fakes[1] == "data":
            assert isinstance(args[0], Tensor)
            self.memory.add_data(result, args[0])
        for value in (*written, *self.memory.written_through_data(written)):
            self.effects.writes = True
            self.memory.add_write(node, value)
            if value.fake is result:
                self._rebind(value, node)
        return self._wrap(result, node)

    def _is_formatted(self, written: Tensor) -> bool:
        """Whether a string is still to be made of memory that is written. Inputs may overlap."""
        return any(self.memory.is_of_input(each) or self.memory.is_shared(each, written) for each in self.formatted)

    def current_device(self, kind: str) -> int:
        """The number of the current device of a kind; it is guarded."""
        index = current_number(kind)
        self.current_devices[kind] = index
        return index

    def require(self, test: Value, text: str) -> None:
        """The graph fails, with everything undone, where `test` is false. It is the host that asks: a device that
        finds out would be lost to the process, and in eager PyTorch a branch waits for it as well."""
        if self.effects.communicates:
            raise Unsupported("B003", "the value of a tensor, after a collective, which cannot be undone")
        if isinstance(test, Tensor) and not on_host(test.fake.device):
            test = self.call("call_method", "to", (test, Constant(HOST)), {})
        self.effects.may_raise()
        self._record("call_function", aten._assert_async.msg, (test, Constant(text)), {}, None)

    def write_size_checks(self, entry: Ambient) -> list[fx.Node]:
        """Nodes that check what was relied on of sizes which only data tell, each as soon as they are known."""
        if self.data_sizes is None:
            return []

        def given(symbol: Symbol) -> fx.Node:
            source, what, dim = symbol.origin
            if what != "number":
                return self._method(what, self._places[source], dim)
            return self._number(symbol)

        return self.data_sizes.write_checks(self.graph, given, Refit(self.graph, self.data_sizes.defining, entry))

    def item(self, value: Tensor, shape_env: ShapeEnv) -> Number:
        """The float that a tensor of one element holds when the graph comes to this place."""
        node = self._record("call_method", "item", (value,), {}, None)
        leaf = Formula(None, (), 2.0, f"{value.node.name}.item()", COMPUTED)
        set_spec(node, NumberSpec(leaf))
        self._numbers.given(leaf, node)
        self._items[leaf] = node
        return Number(leaf.example, symbolic=as_number(shape_env, leaf))

    def tell(self, value: Tensor, supposed: int | None = None) -> Constant:
        """The integer that a tensor of one element holds when the graph comes to this place, as sizes are known;
        `supposed` is what it is before any call has told it."""
        assert self.data_sizes is not None
        if self.effects.communicates:
            raise Unsupported("B027", "a number that a tensor holds, read after a collective")
        self.data_sizes.place = self.place
        number, symbol = self.data_sizes.number(supposed)
        self.effects.may_raise()
        node = self._record("call_method", "item", (value,), {}, None)
        set_spec(node, NumberSpec(Expression.of(symbol)))
        self._numbers.given(symbol, node)
        self.data_sizes.define([(symbol, ())], node)
        return of_number(number)

    def number_tensor(self, value: Number, dtype: torch.dtype) -> Tensor:
        """A tensor without dimensions that holds a number in symbols, made behind all that is there."""
        node = self.graph.call_function(torch.full, ((), self._numbers.write(value.symbolic)), {"dtype": dtype})
        spec = TensorSpec((), (), dtype, HOST)
        set_spec(node, spec)
        tensor = Tensor(node, FakeTensor(spec))
        self._by_fake[id(tensor.fake)] = tensor
        return tensor

    def item_of(self, leaf: Any) -> fx.Node:
        """The node that yields a number which the graph takes out of a tensor."""
        if leaf not in self._items:
            raise Unsupported("B003", "a number that is given at each call, and one that is computed")
        return self._items[leaf]

    def tie(
        self, target: Derivative, outputs: list[Value], others: list[Tensor | Number], inputs: list[Tensor]
    ) -> list[Value]:
        """From here on the outputs are what `target` yields: the same objects, known to autograd, but for inputs that
        are outputs too, of which it yields views."""
        args: tuple[Value, ...] = (Sequence(tuple, list(outputs)), Sequence(tuple, list(others)), *inputs)
        result = self.run("call_function", target, [graph_argument(value, self._fake) for value in args], {})
        node = self._record("call_function", target, args, {}, result)
        tied: list[Value] = []
        for value, fake in zip(outputs, result, strict=True):
            if isinstance(value, Tensor):
                part = self.graph.call_function(operator.getitem, (node, len(tied)))
                set_spec(part, spec_of_value(fake))
                self._added.append(part)
                if fake is value.fake:
                    self._rebind(value, part)
                else:
                    value = self._wrap(fake, part)
            tied.append(value)
        return tied

    def region(self, target: Checkpoint, tape: "Tape") -> None:
        """One node for what `tape` recorded. Which of its tensors the graph needs turns out as they are used."""
        args = tuple(tape.lifted.values())
        node = self._record("call_function", target, args, {}, ())
        self.regions[tape.graph] = Region(self, node, tape.graph)
        self.leaves.add_all(tape.leaves)

    def node_of(self, value: Tensor) -> fx.Node:
        """The node of this graph that yields a tensor; one that a region made becomes one of its results."""
        while value.node.graph is not self.graph and value.node.graph in self.regions:
            region = self.regions[value.node.graph]
            region.owner._rebind(value, region.result(value.node))
        return value.node

    def close_regions(self) -> None:
        """No more results will be asked for."""
        for region in self.regions.values():
            region.close()

    def _rebind(self, value: Tensor, node: fx.Node) -> None:
        self._rewritten.append((value, value.node))
        if value.node in self.inferred:
            self.inferred.add(node)
        value.node = node

    def replace(self, value: Tensor, other: Tensor) -> Tensor:
        """From now on a tensor is what another is. Returns what it was, which stays known: views may lead there, and
        no other fake tensor may get its address."""
        before = Tensor(value.node, value.fake)
        self._by_fake[id(value.fake)] = before
        value.node, value.fake = other.node, other.fake
        return before

    def put_back(self, value: Tensor, before: Tensor) -> None:
        """Undo `replace`."""
        self._by_fake[id(before.fake)] = value
        value.node, value.fake = before.node, before.fake

    def _fake(self, value: Tensor | Number) -> Any:
        """What stands for a tensor, or for a number that may change, where an operator is run for its metadata."""
        if not isinstance(value, Tensor):
            return value.symbolic
        self._by_fake.setdefault(id(value.fake), value)
        return value.fake

    def _operand(self, value: Tensor | Number) -> fx.Node:
        if isinstance(value, Tensor) and value.state is not None and value.state.is_reassigned:
            raise Unsupported("B015", "Tensor.data = … or requires_grad_(), before a tensor is used again,")
        return self._node(value)

    def _node(self, value: Tensor | Number) -> fx.Node:
        """The node of this graph that yields it."""
        return self.node_of(value) if isinstance(value, Tensor) else self._numbers.write(value.symbolic)

    def decided(self, value: Tensor) -> bool | None:
        """The truth of a tensor if it does not depend on what running will yield."""
        known = self.known_item(value)
        return decided(value, self._by_fake) if known is NotImplemented else bool(known)

    def known_item(self, value: Tensor, listed: bool = False) -> Any:
        """The number that a tensor made of constants holds, or its `tolist()`; NotImplemented of any other."""
        return constant_item(value, self._by_fake, self.memory.untracked, listed)

    def require_grad(self, value: Tensor, wanted: bool) -> None:
        """`requires_grad_` of a tensor that the graph computes, which has no history."""
        self.run("call_method", "requires_grad_", [value.fake, wanted], {})
        node = self._record("call_method", "requires_grad_", (value, Constant(wanted)), {}, value.fake)
        self._rebind(value, node)
        self.leaves.add(value.fake)

    def is_given_twice(self, out: Tensor, args: SequenceABC[Value], pointwise: bool) -> bool:
        """Whether memory that a call is to write is among what it reads."""
        read = _fakes_in(tuple(graph_argument(value, self._fake) for value in args))
        return self.memory.is_among(out.fake, read, pointwise)

    def returns_new_leaves(self, outputs: SequenceABC[fx.Node]) -> bool:
        """Whether leaves that the graph makes can be reached from its outputs."""
        return self.leaves.are_returned(outputs, self._by_fake.values())

    def is_entry_ambient(self) -> bool:
        """Whether the state of the process is the one that the captured code was entered in."""
        return self.ambient == self._entry

    def set_ambient(self, ambient: Ambient) -> None:
        """The nodes that follow run under this grad mode and this autocast."""
        if ambient != self.ambient:
            self.ambient = ambient
            replace(ambient, grad=ambient.records).impose()

    def rely_on_grad_mode(self) -> None:
        """The grad mode is read; it is guarded."""

    def _is_inferred(self, fake: FakeTensor) -> bool:
        """Whether a new tensor is one of inference mode: made in it, and no view of one that was not."""
        known = self._by_fake.get(id(fake._base))  # there may be one that only an operator has seen
        if known is None:
            return self.ambient.inference and not self._entry.inference
        return known.node in self.inferred

    def _refuse_inference_tensors(
        self, target: Any, used: list[FakeTensor], written: list[Tensor], result: Any
    ) -> None:
        """Outside inference mode, tensors made in it may neither be written nor be part of what autograd records."""
        known = [self._by_fake[id(fake)] for fake in used if id(fake) in self._by_fake]
        if self.ambient.inference or not any(value.node in self.inferred for value in known):
            return
        if written or any(fake.requires_grad for fake in _fakes_in((result,))):
            raise Unsupported("B021", _name_of(target))

    def forget_casts(self) -> None:
        """The outermost autocast block was left."""
        forget_casts()
        self._added.append(self.graph.call_function(forget_casts))

    def sync_ambient(self, wanted: Ambient) -> None:
        """Nodes that lead from the state the graph is in to `wanted`; only where needed: an empty block is no node."""
        synced, self._synced_ambient = self._synced_ambient, wanted
        if wanted.records != synced.records:
            self._added.append(self.graph.call_function(torch._C._set_grad_enabled, (wanted.records,)))
        for cast, before in zip(wanted.casts, synced.casts, strict=True):
            if cast != before or wanted.cached != synced.cached:
                self._added.append(self.graph.call_function(set_autocast, (*cast, wanted.cached)))
        if wanted.attention != synced.attention:
            self._added.append(self.graph.call_function(*setting_attention(wanted.attention)))

    def run(self, opcode: str, target: Any, fakes: list[Any], named: dict[str, Any]) -> Any:
        """What a call yields, of fake tensors; nothing is recorded."""
        if self.data_sizes is None:
            return self._run_on_fakes(opcode, target, fakes, named)
        shape_env = self.data_sizes.shape_env
        self.data_sizes.fresh.clear()
        self.data_sizes.place = self.place
        known = list(shape_env.guards)
        shape_env.quiet = True
        try:
            return self._run_on_fakes(opcode, target, fakes, named)
        except Unsupported:
            others = self.data_sizes.others(known, list(shape_env.guards)[len(known) :])
            if others is None:
                raise
            raise OtherSizes(others) from None
        finally:
            shape_env.quiet = False

    def _run_on_fakes(self, opcode: str, target: Any, fakes: list[Any], named: dict[str, Any]) -> Any:
        try:
            function = method(target) if opcode == "call_method" else target
            result = spell_out(function, fakes, named)
            return function(*fakes, **named) if result is NotImplemented else result
        except (FakeTensorError, DataDependent) as unknowable:
            raise Unsupported("B004", _name_of(target)) from unknowable
        except Exception as error:
            text = str(error).split("\nException raised from ")[0]  # where in C++ is nobody's concern
            if any(phrase in text for phrase in _NEEDS_DATA):
                if target is torch.lstm and fakes[0].dim() == 3 and any(map(is_symbolic, fakes[0].shape)):  # unpacked
                    raise Unsupported("B009", "the steps of an LSTM whose length is dynamic") from error
                raise Unsupported("B004", _name_of(target)) from error
            raise Unsupported("B011", f"{_name_of(target)}: {type(error).__name__}: {text}") from error

    def _record(
        self, opcode: str, target: Any, args: tuple[Value, ...], kwargs: dict[str, Value], result: Any
    ) -> fx.Node:
        nodes = tuple(graph_argument(value, self._operand) for value in args)
        named = {name: graph_argument(value, self._operand) for name, value in kwargs.items()}
        self.sync_ambient(self.ambient)
        if opcode == "call_method" and self._is_replaced(target, args[0]):
            opcode, target = "call_function", method(target)
        node = add_node(self.graph, opcode, target, nodes, named)
        node.stack_trace = self.place
        if self.callers:
            self.called_from[node] = self.callers
        set_spec(node, spec_of_value(result))
        self._added.append(node)
        return node

    def _is_replaced(self, name: str, receiver: Value) -> bool:
        """Whether the program has put something else in the place of a method of tensors; that it has not is relied
        on, as a graph's text finds the method by its name."""
        kind = receiver.kind if isinstance(receiver, Tensor) else torch.Tensor
        if not is_own(held_by(kind, name)):
            return True
        self.methods.add((kind, name))
        return False

    def _wrap(self, result: Any, node: fx.Node) -> Value:
        if isinstance(result, FakeTensor):
            known = self._by_fake.get(id(result))
            if known is not None:
                return known
            value = Tensor(node, result)
            self._by_fake[id(result)] = value
            if self._is_inferred(result):
                self.inferred.add(node)
            return value
        if isinstance(result, tuple | list):
            items = [self._item(item, node, position) for position, item in enumerate(result)]
            return Sequence(type(result), items)
        if is_constant(result) or is_symbolic(result):
            return of_number(result)
        raise Unsupported("B017", f"{_name_of(node.target)} returns a {type(result).__qualname__}")

    def _item(self, item: Any, node: fx.Node, position: int) -> Value:
        if not isinstance(item, FakeTensor | tuple | list):
            return self._wrap(item, node)
        part = self.graph.call_function(operator.getitem, (node, position))
        set_spec(part, spec_of_value(item))
        self._added.append(part)
        return self._wrap(item, part)


_NEEDS_DATA = ("meta tensor", "1D meta Long tensor", "data is not allocated", "with symbolic sizes")
"""What operators say of a tensor that is none, when they want to read it."""


def _is_sure(target: Any, args: list[Any], result: Any) -> bool:
    """Whether a call yields tensors, or what does not depend on whether a size is 0 or 1."""
    asked = args[1] if target is getattr else target
    if result is None or isinstance(result, torch.Size) or asked in _SURE:
        return True
    return next(_fakes_in((result,)), None) is not None


def _name_of(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _fakes_in(values: tuple[Any, ...]) -> IteratorABC[FakeTensor]:
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _fakes_in(tuple(value))


def metadata_changed(node: fx.Node, fake: Any) -> bool:
    """Whether an input has become another kind of tensor than it came as."""
    spec = tensor_spec(node)
    came = spec.requires_grad, spec.shape, spec.stride
    return came != (fake.requires_grad, tuple(fake.shape), tuple(fake.stride()))
