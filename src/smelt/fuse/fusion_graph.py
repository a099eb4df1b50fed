"""Reads a functional ATen graph for fusion: values in memory or to be computed, and library calls, without views.

    x: f32[4, 8]; t = t(x); y = mul(t, 2); z = mm(y, x)
    →  leaf x · pointwise y reads x at strides (1, 8) · call mm(y, x) → z

A `FusionValue` owns (or would own) dense memory laid out by its strides. Its users read it through strides over their
own dimensions, so views, broadcasts and transposes are all the same thing: a `FusionRead`.
"""

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from smelt.fuse.buffer_reuse import may_fail
from smelt.fuse.inplace_updates import InplaceUpdate, overwriting
from smelt.fuse.lowering import index_exprs
from smelt.fuse.lowering.factors import compute_copies, finished, read_factors, through_copies
from smelt.fuse.lowering.matrix_products import ProductCall
from smelt.fuse.lowering.product_choice import ProductChoice
from smelt.fuse.lowering.rules import PointRule, ReductionRule, ScanRule, ScatterRule, Slot
from smelt.fuse.lowering.values import Call, FusionKind, FusionRead, FusionValue, Lowered, Ref, references, whole
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.check_kernel import SMALL_INTEGERS
from smelt.ir.graph import Traced, output_node, outputs
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.meta.effects import is_collective, waits, why_not_drop, why_not_share
from smelt.meta.rules.strides import like_stride
from smelt.ops.gathers import as_given
from smelt.ops.promote import promoted, widened
from smelt.ops.record import (
    LIBRARY_COST,
    ROOT,
    CopyCall,
    Demand,
    FoldCall,
    LibraryCall,
    Lookup,
    LookupBeside,
    LookupCall,
    LookupIndex,
    OperandLayout,
    OpRecord,
    PieceCall,
    Pieces,
    Pointwise,
    Reduce,
    Scan,
    ScanCall,
    Scatter,
    ScatterCall,
    View,
)
from smelt.ops.registry import only_result, record_of
from smelt.ops.views import expand, squeeze
from smelt.symbolic.shapes import Shape, contiguous_stride, is_dense, product, span
from smelt.symbolic.symsize import known_equal, same_sizes

if TYPE_CHECKING:
    from smelt.fuse.lowering.attention import AttentionCall
    from smelt.fuse.lowering.recurrence import RecurrenceCall


def lower(
    traced: Traced, targets: TargetChoice | None = None, products: str = "auto", convolutions: str = "auto"
) -> Lowered:
    """Read a functional ATen graph. `products` and `convolutions` are the options that choose between kernels and
    library."""
    targets = targets or TargetChoice()
    return _Lowerer(traced, targets, ProductChoice(products, targets, convolutions)).run()


class _Lowerer:
    """One pass over the graph, node by node."""

    def __init__(self, traced: Traced, targets: TargetChoice, products: ProductChoice) -> None:
        self.traced = traced
        self.targets = targets
        self.products = products
        self.lowered = Lowered()
        self.refs: dict[fx.Node, Any] = {}  # Ref, or a list of Refs (None where unused) for several results
        self.last_effect: tuple[Call, ...] = ()
        self.last_collective: tuple[Call, ...] = ()
        self.names = {node.name for node in traced.graph.nodes}
        self.live = _live_nodes(traced.graph)
        self.checked: set[Any] = set()  # indices and what they were found to lie below
        self.failing: list[Call] = []  # calls that may raise
        self.joined: list[Call] = []  # those of them that one flag decides about, as far as more may join
        self.overwriting = overwriting(traced, self.live, targets)

    def run(self) -> Lowered:
        graph = self.traced.graph
        live = self.live
        for node in self.overwriting.order:
            if node is self.overwriting.first_write:
                self._check_early()
            if node.op == "placeholder":
                self._leaf(node)
            elif node in live and node.op == "get_attr":
                self.lowered.constants.append((str(node.name), self.traced.constants[str(node.target)]))
                self._leaf(node)
            elif node in live and node.op == "call_function":
                self._call_function(node)
        for returned in outputs(graph):
            self.lowered.returns.append(self._resolve(returned))
        for ref in references(self.lowered.returns):
            ref.value.needed = True
        _forget_unused(self.lowered)
        if self.products.is_open:
            compute_copies(self.lowered.values, self.products.cycles, self.products.is_for_library)
        return self.lowered

    def _check_early(self) -> None:
        """Run every check that may raise before an input is written."""
        for node, demand, others in self.overwriting.demands:
            instead = {}
            for each, other in others.items():
                shape = tensor_spec(each).shape
                instead[each] = Ref(self.refs[other].value, OperandLayout(shape, (0,) * len(shape)))
            self._check(node, demand, instead)

    def _resolve(self, argument: Any, instead: "dict[fx.Node, Ref] | None" = None) -> Any:
        if isinstance(argument, fx.Node):
            return instead[argument] if instead and argument in instead else self.refs[argument]
        if isinstance(argument, tuple | list):
            return type(argument)(self._resolve(item, instead) for item in argument)
        return argument

    def _new(self, name: str, kind: FusionKind, spec: TensorSpec, **rest: Any) -> FusionValue:
        value = FusionValue(len(self.lowered.items), name, kind, spec, spec.numel, **rest)
        self.lowered.items.append(value)
        for reading in value.readings:
            reading.value.users.append(value)
        computed = kind is FusionKind.POINTWISE and any(reading.value.reads_bytes for reading in value.readings)
        value.reads_bytes = spec.dtype in SMALL_INTEGERS or computed
        return value

    def _leaf(self, node: fx.Node) -> None:
        self.refs[node] = whole(self._new(node.name, FusionKind.LEAF, tensor_spec(node)))

    def _call_function(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            several, position = node.args
            self.refs[node] = self.refs[several][position]  # type: ignore[index]
            return
        put = self.overwriting.puts.get(node)
        if put is not None:
            self._put(node, put)
            return
        record = record_of(node.target)
        why = self.targets.why_not_lower(node)
        if record.demands is not None and not any(user in self.live for user in node.users):
            for demand in record.demands(node):
                self._check(node, demand)
        elif why is not None:
            against = self._whole_or_product(node)
            if against is not None:
                self._library(node, record, against or why)
        elif isinstance(record.lowering, View):
            self._view(node, record.lowering)
        elif isinstance(record.lowering, Pointwise):
            self._pointwise(node, record)
        elif isinstance(record.lowering, Reduce):
            self._reduce(node, record.lowering)
        elif isinstance(record.lowering, Pieces):
            self._pieces(node, record, record.lowering)
        elif isinstance(record.lowering, Scan):
            call = record.lowering.read(node)
            assert isinstance(call, ScanCall)
            self._scan(node, call)
        elif isinstance(record.lowering, Lookup):
            self._lookup(node, record, record.lowering)
        elif isinstance(record.lowering, Scatter):
            self._scatter(node, record, record.lowering)

    def _view(self, node: fx.Node, lowering: View) -> None:
        base: Ref = self.refs[node.args[0]]  # type: ignore[index]
        layout = lowering.move(base.layout, *node.args[1:], **node.kwargs)
        spec = tensor_spec(node)
        if node.target is torch.ops.aten.as_strided.default:
            layout = self._counted_from_value(node, base, layout)
            if layout is None:
                self._library(node, OpRecord(node.target, LibraryCall(), 0), "reaches outside what it is a view of")
                return
        if layout is None:
            why = "reshapes what no strides can describe"
            self._library(node, OpRecord(torch.ops.aten.reshape.default, LibraryCall(), 0), why)
            return
        if layout.shape != spec.shape:
            raise AssertionError(f"{node.format_node()}: shape {layout.shape}, but its spec says {spec.shape}")
        self.refs[node] = Ref(base.value, layout)

    def _counted_from_value(self, node: fx.Node, base: Ref, layout: OperandLayout | None) -> OperandLayout | None:
        """`as_strided` counts its offset from the start of the storage; a layout from the value's first element. None
        where the view reaches outside the value, as it may for a caller's slice of something larger."""
        assert layout is not None
        storage_offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
        if storage_offset is not None:
            layout = OperandLayout(layout.shape, layout.stride, layout.offset - base.value.spec.offset)
        room = span(base.value.spec.shape, base.value.spec.stride)
        fits = layout.offset >= 0 and layout.offset + span(layout.shape, layout.stride) <= room
        return layout if fits else None

    def _pointwise(self, node: fx.Node, record: OpRecord) -> None:
        spec = tensor_spec(node)
        readings: list[FusionRead] = []

        def place(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                ref: Ref = self.refs[argument]
                spread = ref.layout if same_sizes(ref.layout.shape, spec.shape) else expand(ref.layout, spec.shape)
                readings.append(FusionRead.of(ref.value, spread, spec.stride))
                return Slot(len(readings) - 1)
            return argument

        lowering = record.lowering
        assert isinstance(lowering, Pointwise)
        args = tuple(None if lowering.template and i == 0 else place(argument) for i, argument in enumerate(node.args))
        kwargs = {name: place(argument) for name, argument in node.kwargs.items()}
        rule = PointRule(lowering, args, kwargs, promoted(_operand_specs(node)))
        value = self._new(node.name, FusionKind.POINTWISE, spec, readings=tuple(readings), rule=rule, cost=record.cost)
        self.refs[node] = whole(value)

    def _pieces(self, node: fx.Node, record: OpRecord, lowering: Pieces) -> None:
        """Treat the dim as two, part and position in it: no tensor moves along the first."""
        call = lowering.read(node)
        assert isinstance(call, PieceCall)
        spec, dim = tensor_spec(node), call.dim
        length = spec.shape[dim] // call.count
        shape = (*spec.shape[:dim], call.count, length, *spec.shape[dim + 1 :])
        stride = (*spec.stride[:dim], spec.stride[dim] * length, *spec.stride[dim:])
        readings = []
        for _, part in call.parts:
            ref: Ref = self.refs[part]
            have = ref.layout.stride
            inside = (0, *have[dim:]) if call.squeezed else have[dim:]
            layout = OperandLayout(shape, (*have[:dim], 0, *inside), ref.layout.offset)
            readings.append(FusionRead.of(ref.value, layout, stride))
        if call.base is not None:
            ref = self.refs[call.base]
            have = ref.layout.stride
            layout = OperandLayout(shape, (*have[:dim], have[dim] * length, *have[dim:]), ref.layout.offset)
            readings.append(FusionRead.of(ref.value, layout, stride))
        args = (dim, call.count, tuple(number for number, _ in call.parts), *map(Slot, range(len(readings))))
        value = self._new(
            node.name,
            FusionKind.POINTWISE,
            TensorSpec(shape, stride, spec.dtype, spec.device),
            readings=tuple(readings),
            rule=PointRule(Pointwise(index_exprs.chosen), args, {}, spec.dtype),
            cost=record.cost,
        )
        self.refs[node] = Ref(value, OperandLayout(spec.shape, spec.stride))

    def _lookup(self, node: fx.Node, record: OpRecord, lowering: Lookup) -> None:
        """A value that reads its source at data-dependent indices, behind a call that raises if one is out of range."""
        call = lowering.read(node)
        if isinstance(call, CopyCall):
            base: Ref = self.refs[call.source]
            self._take(node, base.value, call.move(base.layout))
            return
        if isinstance(call, ScanCall):
            self._scan(node, call)
            return
        assert isinstance(call, LookupCall)
        spec, readings, free = tensor_spec(node), list[FusionRead](), []
        for source in (self.refs[call.source], *(self._kept_beside(each) for each in call.beside)):
            source.value.needed = True
            stride, layout = [0] * len(spec.shape), source.layout
            for have, dim in zip(layout.stride, call.along, strict=True):
                if dim is not None:
                    stride[dim] += have
            readings.append(FusionRead(source.value, tuple(stride), layout.offset, identity_read=False, indirect=True))
            dims = zip(layout.stride, layout.shape, call.along, strict=True)
            free.append(tuple((step, size) for step, size, dim in dims if dim is None))
        readings += [self._index_reading(index, spec.shape, spec.stride) for index in call.indices]
        for demand in call.demands:
            self._check(node, demand)
        args = (tuple(free), call.emit, *map(Slot, range(len(readings))))
        rule = PointRule(Pointwise(index_exprs.looked_up), args, {}, spec.dtype)
        value = self._new(node.name, FusionKind.POINTWISE, spec, readings=tuple(readings), rule=rule, cost=record.cost)
        self.refs[node] = whole(value)

    def _kept_beside(self, beside: LookupBeside) -> Ref:
        ref, spec = self.refs[beside.node], tensor_spec(beside.node)
        spec = TensorSpec(spec.shape, like_stride(spec.shape, spec.stride), beside.dtype, spec.device)
        reading = FusionRead.of(ref.value, ref.layout, spec.stride)
        rule = PointRule(Pointwise(beside.emit), (Slot(0),), {}, spec.dtype)
        name = f"{beside.node.name}_kept"
        return whole(self._new(name, FusionKind.POINTWISE, spec, readings=(reading,), rule=rule, cost=1))

    def _take(self, node: fx.Node, source: FusionValue, layout: OperandLayout) -> None:
        """The elements of another value at `layout`."""
        spec = only_result(node)
        assert spec is not None
        self._gives(node, self._copy(node.name, spec, source, layout).value)

    def _copy(self, name: str, spec: TensorSpec, source: FusionValue, layout: OperandLayout) -> Ref:
        reading = FusionRead.of(source, layout, spec.stride)
        rule = PointRule(Pointwise(index_exprs.itself), (Slot(0),), {}, spec.dtype)
        return whole(self._new(name, FusionKind.POINTWISE, spec, readings=(reading,), rule=rule, cost=1))

    def _gives(self, node: fx.Node, value: FusionValue) -> None:
        """The result of a call, or the first of several."""
        self.refs[node] = whole(value) if isinstance(spec_of(node), TensorSpec) else [whole(value)]

    def _scan(self, node: fx.Node, call: ScanCall) -> None:
        spec = only_result(node)
        assert spec is not None
        base: Ref = self.refs[call.source]
        if spec.shape[call.dim] == 1:
            self._take(node, base.value, base.layout)
            return
        rule = ScanRule(call, spec.shape[call.dim], spec.stride[call.dim])
        reading = FusionRead.of(base.value, base.layout, spec.stride)
        self._gives(node, self._new(node.name, FusionKind.SCAN, spec, readings=(reading,), rule=rule, cost=ROOT))

    def _scatter(self, node: fx.Node, record: OpRecord, lowering: Scatter) -> None:
        """A copy of the changed tensor, and a value that writes elements into its memory."""
        call = lowering.read(node)
        assert isinstance(call, ScatterCall)
        spec = tensor_spec(node)
        kept = TensorSpec(spec.shape, spec.stride, widened(spec.dtype) if call.wide else spec.dtype, spec.device)
        home = self._home(node, call.base, kept)
        dense = contiguous_stride(call.shape)
        result = [0] * len(call.shape)
        for have, dim in zip(kept.stride, call.along, strict=True):
            if dim is not None:
                result[dim] += have
        readings = [FusionRead(home, tuple(result), 0, identity_read=False, indirect=True)]
        instead = {} if call.base is None else {call.base: whole(home)}
        if isinstance(call.source, fx.Node):
            ref: Ref = self.refs[call.source]
            instead[call.source] = Ref(home, OperandLayout(ref.layout.shape, (0,) * len(ref.layout.shape)))
            readings.append(FusionRead.of(ref.value, _within(ref.layout, call.shape), dense))
        for index in call.indices:
            readings.append(self._index_reading(index, call.shape, dense))
        for demand in call.demands:
            self._check(node, demand, instead)
        moving = [any(reading.stride[dim] for reading in readings[-len(call.indices) :]) for dim in range(len(dense))]
        fixed = product(call.shape[dim] for dim in range(len(dense)) if not any(moving[dim:]))
        last = next((size for size in reversed(call.shape) if size != 1), 1)
        free = zip(kept.stride, kept.shape, call.along, strict=True)
        by = tuple((step, size) for step, size, dim in free if dim is None)
        rule = ScatterRule(call, call.shape, dense, tuple(result), by, fixed if fixed != 1 else last)
        name = node.name if kept.dtype is spec.dtype else self._name(f"{node.name}_wide")
        value = self._new(name, FusionKind.SCATTER, kept, readings=tuple(readings), rule=rule, cost=record.cost)
        if node in self.overwriting.homes:
            value.after = self._whatever_fails()
        self.refs[node] = whole(value)
        if kept.dtype is not spec.dtype:
            self._take(node, value, OperandLayout(kept.shape, kept.stride))

    def _put(self, node: fx.Node, put: InplaceUpdate) -> None:
        """A value that writes elements to a part of the changed tensor."""
        home, ref, layout = self.refs[put.base].value, self.refs[put.source], put.layout
        dense = contiguous_stride(layout.shape)
        readings = (
            FusionRead(home, layout.stride, layout.offset, identity_read=False, indirect=True),
            FusionRead.of(ref.value, _within(ref.layout, layout.shape), dense),
        )
        call = ScatterCall(put.base, layout.shape, put.source, (), as_given, ())
        last = next((size for size in reversed(layout.shape) if size != 1), 1)
        rule = ScatterRule(call, layout.shape, dense, layout.stride, (), last, layout.offset)
        after = self._whatever_fails()
        spec = tensor_spec(node)
        value = self._new(node.name, FusionKind.SCATTER, spec, readings=readings, rule=rule, cost=1, after=after)
        self.refs[node] = whole(value)

    def _whatever_fails(self) -> tuple[Call, ...]:
        """Calls that must come before a write."""
        self.joined.clear()
        return tuple(self.failing)

    def _home(self, node: fx.Node, base: fx.Node | None, spec: TensorSpec) -> FusionValue:
        """Memory that holds the tensor a scatter changes and that nothing else reads from then on."""
        name = self._name(f"{node.name}_home")
        if base is None:
            rule = PointRule(Pointwise(index_exprs.zero), (), {}, spec.dtype)
            home = self._new(name, FusionKind.POINTWISE, spec, rule=rule, cost=0)
        else:
            ref: Ref = self.refs[base]
            if node in self.overwriting.homes:
                return ref.value
            if ref.value.kind is FusionKind.SCATTER and ref.value.spec == spec and list(base.users) == [node]:
                return ref.value
            rule = PointRule(Pointwise(index_exprs.itself), (Slot(0),), {}, spec.dtype)
            reading = FusionRead.of(ref.value, ref.layout, spec.stride)
            home = self._new(name, FusionKind.POINTWISE, spec, readings=(reading,), rule=rule, cost=1)
        home.needed = True
        return home

    def _index_reading(self, index: LookupIndex, shape: Shape, dense: Shape) -> FusionRead:
        """An index as it is read by a user with these dims."""
        ref: Ref = self.refs[index.node]
        inside = (*([0] * index.dim), *_spread(ref.layout))
        spread = OperandLayout(shape, (*inside, *([0] * (len(shape) - len(inside)))), ref.layout.offset)
        return FusionRead.of(ref.value, spread, dense)

    def _check(self, node: fx.Node, demand: Demand, instead: "dict[fx.Node, Ref] | None" = None) -> None:
        """Call the operator itself if an index is out of range, so that it raises; skip indices that were checked
        before. It gets `instead` of some tensors others of the same shape, so that these need not be stored only for
        the error."""
        ref: Ref = self.refs[demand.index]
        layout = ref.layout
        key = (ref.value, layout, demand.extent, demand.from_end, demand.besides)
        if key in self.checked:
            return
        self.checked.add(key)
        # What is spread over a dim is looked at once.
        shape = tuple(1 if step == 0 else size for size, step in zip(layout.shape, layout.stride, strict=True))
        if 0 in shape:  # no index, none out of range: there would be no flag to read either
            return
        once = OperandLayout(shape, layout.stride, layout.offset)
        dense, device = _dense_order(once), ref.value.spec.device
        args: tuple[Any, ...] = (Slot(0), -demand.extent if demand.from_end else 0, demand.extent, demand.besides)
        readings = [FusionRead.of(ref.value, once, dense)]
        rule: Callable[..., Any] = index_exprs.is_inside
        known = self.joined[-1].unless if self.joined else None
        if known is not None and known.spec.device == device:
            readings.append(FusionRead.of(known, OperandLayout(shape, (0,) * len(shape)), dense))
            args, rule = (*args, Slot(1)), index_exprs.is_inside_too
        inside = self._new(
            self._name(f"{node.name}_inside"),
            FusionKind.POINTWISE,
            TensorSpec(shape, dense, torch.bool, device),
            readings=tuple(readings),
            rule=PointRule(Pointwise(rule), args, {}, torch.int64),
            cost=2,
        )
        holds = self._all(self._name(f"{node.name}_checked"), inside) if product(shape) > 1 else inside
        holds.needed = True
        limits = self.targets.limits_of(device)
        if not limits.host_reads_flags:
            self._assert_on_device(node, holds)
            return
        self._library(node, record_of(node.target), "raises for what is out of range", holds, instead)
        if limits.joins_flags:
            check = self.lowered.items[-1]
            assert isinstance(check, Call)
            self._join_flags(check)

    def _join_flags(self, check: Call) -> None:
        """Let one flag, the last, decide all checks since the last write: they come right behind it."""
        self.joined.append(check)
        items = self.lowered.items
        for earlier in self.joined[:-1]:
            assert earlier.unless is not None
            earlier.unless.needed, earlier.unless = False, check.unless
            items.remove(earlier)
            items.insert(len(items) - 1, earlier)
        for place, item in enumerate(items):
            item.id = place

    def _assert_on_device(self, node: fx.Node, holds: FusionValue) -> None:
        """Assert on the device that indices are in range, as PyTorch's own kernels do: waiting for the flag at each
        such operator would stall the host. Nothing after it runs on the device, so nothing reads out of bounds; the
        next synchronizing call raises, and the process loses the device."""
        text = f"{node.target}: an index is out of range"
        op, args = torch.ops.aten._assert_async.msg, (whole(holds), text)
        call = Call(len(self.lowered.items), node.name, op, LibraryCall(), args, {}, [], "stops the device")
        call.after, self.last_effect = self.last_effect, (call,)
        self.lowered.items.append(call)
        self.failing.append(call)

    def _all(self, name: str, value: FusionValue) -> FusionValue:
        """Whether all elements of a value are true."""
        shape, stride = value.spec.shape, value.spec.stride
        call = FoldCall("all", tuple(range(len(shape))), False, torch.bool)
        rule = ReductionRule.of(call, shape, stride, (0,) * len(shape))
        reading = FusionRead.of(value, OperandLayout(shape, stride), stride)
        spec = TensorSpec((), (), torch.bool, value.spec.device)
        return self._new(name, FusionKind.REDUCE, spec, readings=(reading,), rule=rule, cost=1)

    def _name(self, wanted: str) -> str:
        """`wanted`, or a similar unused name."""
        while wanted in self.names:
            wanted += "_"
        self.names.add(wanted)
        return wanted

    def _layout_and_value(self, node: fx.Node) -> Ref:
        ref: Ref = self.refs[node]
        return ref

    def _layout(self, node: fx.Node) -> OperandLayout:
        ref: Ref = self.refs[node]
        return ref.layout

    def _whole_or_product(self, node: fx.Node) -> str | None:
        from smelt.fuse.lowering.attention import is_attention_call  # not where all is element-wise
        from smelt.fuse.lowering.recurrence import is_recurrence_call

        is_recurrent = is_recurrence_call(node)
        return self._whole(node, is_recurrent) if is_recurrent or is_attention_call(node) else self._products(node)

    def _whole(self, node: fx.Node, is_recurrent: bool) -> str | None:
        """Lower an attention or a recurrent layer to a kernel, or return the reason why it is a library call."""
        read = {user.args[1] for user in node.users if user in self.live}
        used = [each for each in _results(node) if each[0] in read]
        asked = [(number, spec) for number, _, spec in used]
        choice: tuple[AttentionCall | RecurrenceCall, str] | str
        if is_recurrent:
            choice = self.products.recur(node, self._layout_and_value, asked)
        else:
            choice = self.products.attend(node, self._layout_and_value, asked)
        if isinstance(choice, str):
            return choice
        call, why = choice
        for source in call.sources:
            source.needed = True
        assert isinstance(node.target, torch._ops.OpOverload)
        args = tuple(whole(source) for source in call.sources)
        item = Call(len(self.lowered.items), node.name, node.target, LibraryCall(), args, {}, [], why)
        item.kernel = call.kernel
        self.lowered.items.append(item)
        results = {number: self._new(name, FusionKind.LIBRARY, spec, call=item) for number, name, spec in used}
        item.results = [*results.values()]
        specs = spec_of(node)
        count = len(specs) if isinstance(specs, tuple) else 1
        self.refs[node] = [whole(results[number]) if number in results else None for number in range(count)]
        return None

    def _products(self, node: fx.Node) -> str | None:
        """Lower a call that multiplies, or return the reason why it is a library call: empty if it is no product."""
        calls = self.products.read(node, self._layout)
        if not isinstance(calls, dict):
            return calls or ""
        from smelt.fuse.lowering.dequantize import with_integers

        results = _results(node)
        plans: dict[int, tuple[ProductCall, list[FusionValue], TensorSpec, str]] = {}
        for number, _, spec in results:
            if number not in calls:
                continue
            call = calls[number]
            along = call.rule.runs_along  # as the library would be given the factors
            factors = [self.refs[call.left].value, self.refs[call.right].value]
            call, sources = through_copies(call, factors, partial(self._is_for_library, spec))
            followed = not call.is_bare or _is_followed(node)
            # Integers are read where a kernel can do that, or else the weights computed from them.
            ways = [*with_integers(call, sources), (call, sources)]
            for call, sources in ways:
                sums = _sums_of(call, spec)
                decision = self.products.decide(
                    node, call, [source.spec for source in sources], sums, along=along, followed=followed
                )
                if decision.own:
                    break
            if not decision.own:
                return decision.why
            plans[number] = (call, sources, sums, decision.why)
        refs: dict[int, Ref] = {}
        for number, name, spec in results:
            if number in plans:
                refs[number] = self._product(name, spec, *plans[number])
            else:
                refs[number] = self._sum_of_channels(name, spec, self.refs[node.all_input_nodes[0]])
        specs = spec_of(node)
        self.refs[node] = [refs.get(each) for each in range(len(specs))] if isinstance(specs, tuple) else refs[0]
        return None

    def _product(
        self, name: str, spec: TensorSpec, call: ProductCall, sources: list[FusionValue], sums: TensorSpec, why: str
    ) -> Ref:
        """A value for the sums, and one for the operations on them: scaling, addition, one rounding. If the result is
        only a part of the points, it is copied."""
        is_part = not known_equal(product(call.shape), spec.numel)
        bare = call.is_bare and sums.dtype is spec.dtype
        first = name if bare and not is_part else self._name(f"{name}_sums")
        readings = read_factors(call, sources)
        value = self._new(
            first, FusionKind.PRODUCT, sums, readings=readings, rule=call.rule, cost=LIBRARY_COST, why=why
        )
        value.by_library = self._is_for_library(spec, call, sources)
        if not bare:
            points = TensorSpec(call.shape, call.stride, spec.dtype, spec.device)
            readings, rule = finished(call, value, None if call.added is None else self.refs[call.added.node].value)
            second = self._name(f"{name}_points") if is_part else name
            value = self._new(second, FusionKind.POINTWISE, points, readings=readings, rule=rule, cost=2)
        return self._copy(name, spec, value, call.layout) if is_part else Ref(value, call.layout)

    def _is_for_library(self, result: TensorSpec, call: ProductCall, sources: list[FusionValue]) -> bool:
        factors = [source.spec for source in sources]
        return self.products.is_for_library(call.rule, factors, _sums_of(call, result))

    def _sum_of_channels(self, name: str, spec: TensorSpec, image: Ref) -> Ref:
        """The gradient of a bias that was added to each channel: a sum over images and positions."""
        shape = image.layout.shape
        call = FoldCall("sum", tuple(dim for dim in range(len(shape)) if dim != 1), False, widened(spec.dtype))
        if product(shape[dim] for dim in call.dims) == 1:
            return self._copy(name, spec, image.value, squeeze(image.layout, call.dims))
        result = tuple(spec.stride[0] if dim == 1 else 0 for dim in range(len(shape)))
        rule = ReductionRule.of(call, shape, _dense_order(image.layout), result)
        reading = FusionRead.of(image.value, image.layout, rule.stride)
        return whole(self._new(name, FusionKind.REDUCE, spec, readings=(reading,), rule=rule, cost=1))

    def _reduce(self, node: fx.Node, lowering: Reduce) -> None:
        call = lowering.read(node)
        base: Ref = self.refs[node.args[0]]  # type: ignore[index]
        spec = tensor_spec(node)
        shape = base.layout.shape
        if product(shape[dim] for dim in call.dims) == 1:
            self._fold_nothing(node, call, base)
            return
        own = iter(spec.stride)
        result = []
        for dim in range(len(shape)):
            stride = next(own) if call.keepdim or dim not in call.dims else 0
            result.append(0 if dim in call.dims else stride)
        rule = ReductionRule.of(call, shape, _dense_order(base.layout), tuple(result))
        reading = FusionRead.of(base.value, base.layout, rule.stride)
        if call.divide:
            self._mean(node, rule, reading)
            return
        value = self._new(node.name, FusionKind.REDUCE, spec, readings=(reading,), rule=rule, cost=1)
        self.refs[node] = whole(value)

    def _mean(self, node: fx.Node, rule: ReductionRule, reading: FusionRead) -> None:
        """A sum, then a division: dividing the summands would round each, and the mean of equal numbers would differ
        from them."""
        spec = tensor_spec(node)
        wide = TensorSpec(spec.shape, spec.stride, rule.call.dtype, spec.device)
        name = self._name(f"{node.name}_total")
        total = self._new(name, FusionKind.REDUCE, wide, readings=(reading,), rule=rule, cost=1)
        divide = PointRule(Pointwise(index_exprs.divided), (Slot(0), rule.count), {}, wide.dtype)
        summed = FusionRead.of(total, OperandLayout(spec.shape, spec.stride), spec.stride)
        value = self._new(node.name, FusionKind.POINTWISE, spec, readings=(summed,), rule=divide, cost=ROOT)
        self.refs[node] = whole(value)

    def _fold_nothing(self, node: fx.Node, call: FoldCall, base: Ref) -> None:
        """A reduction over extents of one is the element itself."""
        self._take(node, base.value, base.layout if call.keepdim else squeeze(base.layout, call.dims))

    def _library(
        self,
        node: fx.Node,
        record: OpRecord,
        why: str,
        unless: FusionValue | None = None,
        instead: "dict[fx.Node, Ref] | None" = None,
    ) -> None:
        lowering = record.lowering
        if isinstance(lowering, Pieces | Lookup | Scan | Scatter):
            lowering = lowering.otherwise
        lowering = lowering if isinstance(lowering, LibraryCall) else LibraryCall()
        target = record.op if isinstance(record.lowering, LibraryCall) else node.target
        assert isinstance(target, torch._ops.OpOverload)
        named = dict(node.kwargs)
        if lowering.template:
            names = [argument.name for argument in target._schema.arguments]
            named |= zip(names[1 : len(node.args)], node.args[1:], strict=True)
        args = self._resolve(() if lowering.template else node.args, instead)
        kwargs = {name: self._resolve(argument, instead) for name, argument in named.items()}
        for ref in references((args, kwargs)):
            ref.value.needed = True
        call = Call(len(self.lowered.items), node.name, target, lowering, args, kwargs, [], why, unless)
        self.lowered.items.append(call)
        if unless is None and why_not_share(node) is not None and not waits(target):
            call.after, self.last_effect = self.last_effect, (call,)
        self._order_with_collectives(call, may_fail(lowering.out or target))
        if unless is not None:
            return
        spec = spec_of(node)
        if isinstance(spec, TensorSpec):
            value = self._new(node.name, FusionKind.LIBRARY, spec, call=call)
            call.results.append(value)
            self.refs[node] = whole(value)
        elif isinstance(spec, tuple):
            self.refs[node] = self._several(node, call, spec)

    def _order_with_collectives(self, call: Call, fails: bool) -> None:
        """Keep checks that may raise on their side of a collective: other processes can observe the difference."""
        if is_collective(call.op) and not waits(call.op):
            call.after = (*call.after, *(each for each in self._whatever_fails() if not waits(each.op)))
            self.last_collective = (call,)
        elif fails and not waits(call.op):
            call.after = (*call.after, *self.last_collective)
        if fails:
            self.failing.append(call)

    def _several(self, node: fx.Node, call: Call, specs: tuple[TensorSpec | None, ...]) -> list[Ref | None]:
        used = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        refs: list[Ref | None] = []
        for position, spec in enumerate(specs):
            if spec is None or position not in used:
                call.results.append(None)
                refs.append(None)
                continue
            value = self._new(used[position].name, FusionKind.LIBRARY, spec, call=call)
            call.results.append(value)
            refs.append(whole(value))
        return refs


def _sums_of(call: ProductCall, result: TensorSpec) -> TensorSpec:
    """What a product computes before it is scaled, added to and rounded."""
    return TensorSpec(call.shape, call.stride, widened(result.dtype), result.device)


def _results(node: fx.Node) -> list[tuple[int, str, TensorSpec]]:
    """The used results of a call: their numbers, names and specs."""
    specs = spec_of(node)
    if not isinstance(specs, tuple):
        return [(0, node.name, tensor_spec(node))]
    used = {user.args[1]: (user.name, tensor_spec(user)) for user in node.users if user.target is operator.getitem}
    return [(number, *used[number]) for number in range(len(specs)) if number in used]


def _is_followed(node: fx.Node) -> bool:
    """Whether a pointwise operation follows a result, judging by the operators."""
    for user in node.users:
        lowering = record_of(user.target).lowering if isinstance(user.target, torch._ops.OpOverload) else None
        if isinstance(lowering, Pointwise) or (isinstance(lowering, View) and _is_followed(user)):
            return True
    return False


def _forget_unused(lowered: Lowered) -> None:
    """Clear the reads of values whose readers were replaced."""
    for value in reversed(list(lowered.values)):
        if value.is_computed and not value.users and not value.needed:
            for reading in value.readings:
                reading.value.users.remove(value)


def _live_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the outputs need, and nodes with side effects: drawing random numbers, raising."""
    live = {output_node(graph)}
    for node in reversed(graph.nodes):
        if node in live or (node.op == "call_function" and why_not_drop(node) is not None):
            live.add(node)
            live.update(node.all_input_nodes[1:] if _has_template(node) else node.all_input_nodes)
    return live


def _has_template(node: fx.Node) -> bool:
    """Whether a library call uses only the shape of its first tensor."""
    lowering = record_of(node.target).lowering if isinstance(node.target, torch._ops.OpOverload) else None
    return isinstance(lowering, LibraryCall) and lowering.template


def _operand_specs(node: fx.Node) -> Iterator[Any]:
    for argument in node.args:
        if isinstance(argument, fx.Node):
            yield tensor_spec(argument)
        elif isinstance(argument, bool | int | float):
            yield argument


def _dense_order(layout: OperandLayout) -> Shape:
    """Dense strides in memory order; the layout's own where it is dense."""
    if is_dense(layout.shape, layout.stride):
        return layout.stride
    order = sorted(range(len(layout.shape)), key=lambda dim: (layout.stride[dim], -dim))
    strides, step = [0] * len(order), 1
    # Broadcast dims (stride 0) have no place in memory: visit them outermost.
    for dim in [d for d in order if layout.stride[d]] + [d for d in order if not layout.stride[d]]:
        strides[dim] = step
        step *= layout.shape[dim]
    return tuple(strides)


def _within(layout: OperandLayout, shape: Shape) -> OperandLayout:
    """The first elements along each dim, as many as `shape` has; an extent of one is broadcast."""
    if len(layout.shape) == len(shape) and not any(a == 1 != b for a, b in zip(layout.shape, shape, strict=True)):
        return OperandLayout(shape, layout.stride, layout.offset)
    return expand(layout, shape)


def _spread(layout: OperandLayout) -> Shape:
    """Strides with which extents of one are broadcast."""
    return tuple(0 if size == 1 else step for size, step in zip(layout.shape, layout.stride, strict=True))
