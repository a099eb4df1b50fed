"""Flattening a program: `Program` + built kernels → the table that `_native.Runner` runs.

    out = x @ w.T                     Allocate(2)
    out = relu(out)          →        Call("aten::mm.out", torch.mm, …, Native("aoti_torch_cpu_mm_out", …))
                                      Launch(0, (2,))

Tensors are numbers there: inputs, constants, what steps make, then what is in the arena, in the order in which steps
first name it (`ir/table/records.py` has the form). Library calls are given without Python too, where PyTorch's C
interface has them (`torch_abi/boxed_calls.py`).
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.ir.kernel import Role
from smelt.ir.nodes import defining
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer, Step, operands_in, reads, touched
from smelt.ir.table import records as r
from smelt.ir.table.records import Layout, Native, Ref
from smelt.ir.table.write import ProgramWriter
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.effects import draws_random
from smelt.runtime.program.small_matmul import as_called, small_product
from smelt.symbolic.shapes import Shape, Size, product, span
from smelt.torch_abi.aoti_shims import device_code, dtype_code
from smelt.torch_abi.boxed_calls import FUNCTIONS, boxed_call, function_call

BuiltKernel = Callable[..., None]


def _scatter(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A copy of a tensor with a part of it replaced. PyTorch's own would copy all of the memory the tensor lies in."""

    def call(whole: torch.Tensor, part: torch.Tensor, *where: Any, **named: Any) -> torch.Tensor:
        copy = BASE.clone(whole)
        BASE.copy_(view(copy, *where, **named), part)
        return copy

    return call


_SCATTERS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    torch.ops.aten.select_scatter.default: _scatter(torch.select),
    torch.ops.aten.slice_scatter.default: _scatter(torch.ops.aten.slice.Tensor),
    torch.ops.aten.diagonal_scatter.default: _scatter(torch.diagonal),
}

# The same operators by PyTorch's own Python bindings, which cost half of what a call through `torch.ops` does.
BINDINGS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    torch.ops.aten.mm.out: torch.mm,
    torch.ops.aten.bmm.out: torch.bmm,
    torch.ops.aten.addmm.out: torch.addmm,
    torch.ops.aten.baddbmm.out: torch.baddbmm,
    torch.ops.aten.cat.out: torch.cat,
    torch.ops.aten.convolution.default: torch.convolution,
    torch.ops.aten.embedding.default: torch.embedding,
    **_SCATTERS,
}


def function_of(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """What calls an operator for the least."""
    if op.namespace == "smelt":
        return defining(op._schema.name).FUNCTIONS[op]  # type: ignore[no-any-return]
    return BINDINGS.get(op, op)


@dataclass(frozen=True, slots=True)
class FlatTable:
    """The table of a program, and the objects it refers to."""

    table: bytes
    objects: tuple[Any, ...]


def flatten(program: Program, kernels: Mapping[str, BuiltKernel], consuming: bool) -> FlatTable:
    """The table of a program whose kernels are built. `consuming`: its inputs are dropped after their last use."""
    return Flattener(program, kernels, consuming).flatten()


class Flattener:
    """The steps of one program as they are written, every buffer a number."""

    def __init__(self, program: Program, kernels: Mapping[str, BuiltKernel], consuming: bool) -> None:
        self.program = program
        self.kernels = kernels
        self.consuming = consuming
        self.buffers: dict[str, ProgramBuffer] = {buffer.name: buffer for buffer in program.buffers}
        self.refs: dict[str, Ref] = {}  # to whole buffers, which most are
        self.layouts = self._layouts()
        self.fresh = {buffer.name for buffer in program.buffers if buffer.place is Place.FRESH}
        new = [each.name for each in program.buffers if each.place is Place.LIBRARY or each.name in self.fresh]
        self.local = {*new, *program.inputs} if consuming else set(new)  # what is dropped after its last use
        self.names = (*program.inputs, *(name for name, _ in program.constants), *new)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.arena_first = len(self.names)
        self.arena_views: dict[Operand, Ref] = {}
        self.writer = ProgramWriter(program.name, [tensor for _, tensor in program.constants], dtype_code, device_code)

    def flatten(self) -> FlatTable:
        self.write()
        return FlatTable(self.writer.pack(), tuple(self.writer.objects))

    def write(self) -> None:
        """Write the whole program. Sizes that vary are words of the table as they are."""
        for name in self.names:
            spec = self.buffers[name].spec
            shape, stride = self.layouts[name]
            self._add_tensor(name, spec, Layout(tuple(shape), tuple(stride)))
        writes_from = self._write_steps()
        outputs = tuple(self._argument(output) for output in self.program.outputs)
        for view in self.arena_views:  # complete only now
            buffer = self.buffers[view.buffer]
            layout = Layout(tuple(view.shape), tuple(view.stride), view.offset)
            self._add_tensor(buffer.name, buffer.spec, layout, buffer.offset)
        program = r.Program(
            inputs=len(self.program.inputs),
            constants=len(self.program.constants),
            arena=len(self.arena_views),
            arena_bytes=self.program.arena_bytes,
            consuming=self.consuming,
            output=outputs,
            writes_from=writes_from,
        )
        self.writer.add("programs", program)

    def _add_tensor(self, name: str, spec: TensorSpec, layout: Layout, arena_offset: Size = 0) -> None:
        self.writer.add("tensors", r.Tensor(name, spec.dtype, spec.device, layout, arena_offset))

    def _layouts(self) -> dict[str, tuple[Shape, Shape]]:
        """How fresh buffers are laid out: as the one result that each is, so that no view of it need be made. Kernels
        do not care; one in Python does."""
        seen: dict[str, set[Operand]] = {}
        for output in self.program.outputs:
            if isinstance(output, Operand):
                seen.setdefault(output.buffer, set()).add(output)
        layouts = {name: (buffer.spec.shape, buffer.spec.stride) for name, buffer in self.buffers.items()}
        native = all(isinstance(kernel, _native.AnyLauncher) for kernel in self.kernels.values())
        for name, operands in seen.items():
            if native and len(operands) == 1 and self.buffers[name].place is Place.FRESH:
                (only,) = operands
                as_output = only.shape, only.stride
                if only.offset == 0 and as_output != layouts[name] and _extent(*as_output) == _extent(*layouts[name]):
                    layouts[name] = as_output
        return layouts

    def _write_steps(self) -> int | None:
        """The number of the first step that writes an input, if one does."""
        writer, writes_from, inputs = self.writer, None, set(self.program.inputs)
        last_use, unmade = _last_uses(self.program), set(self.fresh)
        for position, step in enumerate(self.program.steps):
            for name in _written(step):
                if name in unmade:
                    unmade.remove(name)
                    writer.add_step(r.Allocate(self.numbers[name]))
            dying = {name for name in last_use.get(position, ()) if name in self.local}
            if isinstance(step, Launch):
                if writes_from is None and _writes_one_of(inputs, step):
                    writes_from = writer.step_count
                name, values = step.kernel.name, tuple([self._whole(each).value for each in step.args])
                kernel = writer.kernel(name, self.kernels[name], len(values), step.target)
                writer.add_step(r.Launch(kernel, values))
            else:
                unread = set[str]() if step.into else dying.difference(reads(step))
                writer.add_step(self._call(step, unread))
                dying -= unread
            if dying:
                writer.add_step(r.Drop(tuple(sorted(self.numbers[name] for name in dying))))
        return writes_from

    # --- library calls --------------------------------------------------------------------------------

    def _call(self, step: Library, unread: Collection[str]) -> r.Call:
        named, op = self._named(step), _facts_of(step.op)
        outs = () if step.into else step.outs
        results = [None if name is None or name in unread else self.numbers[name] for name in outs]
        return r.Call(
            name=op.name,
            function=function_of(step.op),
            arguments=tuple([self._argument(value) for value in (*step.args, *named.values())]),
            names=tuple(named),
            results=tuple(results),
            is_one=bool(results) and op.returns_one,
            native=self._native(step, named),
            unless=None if step.unless is None else self._whole(step.unless).value,
            draws=_draws(step, results),
        )

    def _named(self, step: Library) -> dict[str, Any]:
        """Arguments by name, the buffers it writes into among them."""
        named = dict(step.kwargs)
        for key, name in zip(step.into, step.outs, strict=True) if step.into else ():
            if name is not None:
                named[key] = self._operand(name)
        return named

    def _native(self, step: Library, named: Mapping[str, Any]) -> Native | None:
        """The same call without Python, if PyTorch's C interface has it."""
        return self._by_function(step) or self._boxed(step, named)

    def _by_function(self, step: Library) -> Native | None:
        tensors = self._product_operands(step)
        if not tensors:
            return None
        numbers = dict(step.kwargs)
        factors = tuple([float(numbers.get(factor, 1)) for factor in _facts_of(step.op).factors or ()])
        # Of the arena each operand is a tensor of its own, any other is part of the tensor that its buffer is.
        begins = [0 if self.buffers[each.buffer].place is Place.ARENA else each.offset for each in tensors]
        specs = [self.buffers[each.buffer].spec for each in tensors]
        on_cpu = specs[0].device.type == "cpu"
        product_made = small_product(tensors, begins, {spec.dtype for spec in specs}) if on_cpu else ()
        operands = tuple([self._ref(each) for each in tensors])
        return function_call(step.op, operands, factors, product_made, specs[0].device.type)

    def _boxed(self, step: Library, named: Mapping[str, Any]) -> Native | None:
        # PyTorch's own scatters copy all of the storage that their input is in, be it a whole arena.
        if step.unless is not None or step.op in _SCATTERS:
            return None
        return boxed_call(step.op, step.args, named, Operand, self._ref)

    def _product_operands(self, step: Library) -> Sequence[Operand]:
        """What a product's own function takes: the result, then the others; () if there is none for this step."""
        factors = _facts_of(step.op).factors
        if factors is None or step.into != ("out",) or step.outs[0] is None:
            return ()
        operands = [operand for operand in step.args if isinstance(operand, Operand)]
        if len(operands) != len(step.args) or not {name for name, _ in step.kwargs} <= set(factors):
            return ()
        tensors = [self._operand(step.outs[0]), *operands]
        specs = [self.buffers[operand.buffer].spec for operand in tensors]
        devices = {spec.device for spec in specs}
        if len(devices) != 1 or devices.pop().type not in ("cpu", "cuda"):
            return ()
        if specs[0].device.type == "cuda":
            return tensors
        return as_called(tensors, {spec.dtype for spec in specs})

    # --- tensors --------------------------------------------------------------------------------------

    def _operand(self, name: str) -> Operand:
        """A whole buffer."""
        spec = self.buffers[name].spec
        return Operand(name, spec.shape, spec.stride)

    def _whole(self, name: str) -> Ref:
        ref = self.refs.get(name)
        if ref is None:
            ref = self.refs[name] = self._ref(self._operand(name))
        return ref

    def _ref(self, operand: Operand) -> Ref:
        if self.buffers[operand.buffer].place is Place.ARENA:
            ref = self.arena_views.get(operand)
            if ref is None:
                ref = self.arena_views[operand] = Ref(self.arena_first + len(self.arena_views))
            return ref
        number = self.numbers[operand.buffer]
        if operand.offset == 0 and (operand.shape, operand.stride) == self.layouts[operand.buffer]:
            return Ref(number)
        return Ref(number, Layout(tuple(operand.shape), tuple(operand.stride), operand.offset))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Operand):
            return self._ref(value)
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        return tuple(self._argument(item) for item in value) if isinstance(value, tuple) else value


def _extent(shape: Shape, stride: Shape) -> tuple[Size, Size]:
    """How many elements there are, and in how many places they lie."""
    return product(shape), span(shape, stride)


class _OpFacts(NamedTuple):
    """What is asked of an operator for each of its calls."""

    name: str
    factors: tuple[str, ...] | None  # None: it is no product with a function of its own
    returns_one: bool  # tensor, not a list or a tuple of them


@functools.cache
def _facts_of(op: torch._ops.OpOverload) -> _OpFacts:
    schema = op._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    returns_one = len(schema.returns) == 1 and str(schema.returns[0].type) != "List[Tensor]"
    return _OpFacts(name, FUNCTIONS.get(op), returns_one)


def _draws(step: Library, results: Sequence[int | None]) -> r.Draws:
    named = dict(step.kwargs)
    if not draws_random(step.op, step.args, named):
        return r.Draws.NOTHING
    device, generator = named.get("device"), named.get("generator")
    on_host = generator is None and (device is None or torch.device(device).type == "cpu")
    operands = any(True for _ in operands_in((*step.args, *named.values())))
    is_unread = not step.into and all(number is None for number in results) and not operands
    return r.Draws.UNREAD if on_host and is_unread else r.Draws.NUMBERS


def _writes_one_of(names: set[str], step: Launch) -> bool:
    pairs = zip(step.kernel.parameters, step.args, strict=True)
    return not names.isdisjoint([name for parameter, name in pairs if parameter.role is not Role.INPUT])


def _written(step: Step) -> list[str]:
    """Buffers a step defines, those a kernel takes but does not write included (they are allocated already)."""
    if isinstance(step, Launch):
        return list(step.args)
    return [name for name in step.outs if name is not None]


def _last_uses(program: Program) -> dict[int, list[str]]:
    """Step position → buffers nobody needs afterwards; those the program returns are left out."""
    returned = {operand.buffer for operand in operands_in(program.outputs)}
    last = {name: position for position, step in enumerate(program.steps) for name in touched(step)}
    by_position: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in returned:
            by_position.setdefault(position, []).append(name)
    return by_position
