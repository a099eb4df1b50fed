"""Running a kernel program: `Program` + built kernels → a callable from flat tensors to flat outputs.

The steps become a table that `_native.Runner` goes through in one call, without Python between them where PyTorch's C
interface has the operators (`torch_abi/boxed_calls.py`):

    out = x @ w.T                     ("allocate", 2, (4, 8), (8, 1), float32, cpu, 6)
    out = relu(out)          →        ("call", torch.mm, …, NativeCall("aoti_torch_cpu_mm_out", …))
                                      ("launch", k0_relu, (2,))

Tensors are numbers there: inputs, constants, what lies in the arena, then what steps make (`_native.pyi` has the form).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from smelt import _native
from smelt.base.errors import UnexpectedResult
from smelt.base.torch_originals import BASE
from smelt.ir.kernel import Role
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer, Step, operands_in, touches
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.profile import note
from smelt.runtime.program.small_matmul import as_called, small_product
from smelt.symbolic.shapes import Shape, Size, product, span
from smelt.torch_abi.aoti_shims import connect, device_code, dtype_code
from smelt.torch_abi.boxed_calls import FUNCTIONS, NativeCall, boxed_call, function_call

BuiltKernel = Callable[..., None]

# Where one of these returns something true, somebody looks at what operators are called, and Python calls them.
_WATCHERS = (torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled)


def _scatter(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A copy of a tensor with a part of it replaced. PyTorch's own would copy all of the memory the tensor lies in."""

    def call(whole: torch.Tensor, part: torch.Tensor, *where: Any, **named: Any) -> torch.Tensor:
        made = BASE.clone(whole)
        BASE.copy_(view(made, *where, **named), part)
        return made

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


class Executable:
    """A program bound to its kernels; call `run` with the program's inputs, in order.

    If it is `consuming`, `run` takes them in a list instead, which it empties, and lets each go after its last use.
    """

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, BuiltKernel],
        threads: int = 0,
        keep_alive: Any = None,
        *,
        consuming: bool = False,
        arenas: Arenas | None = None,
    ) -> None:
        connect()
        self.program = program
        self.keep_alive = keep_alive  # owns the machine code
        table = _Table(program, kernels, consuming)
        arenas = arenas if arenas is not None else Arenas()
        self.run = _native.Runner(
            inputs=len(program.inputs),
            constants=tuple(tensor for _, tensor in program.constants),
            arena=len(table.arena_views),
            values=table.count,
            steps=table.steps(),
            outputs=table.outputs(),
            consuming=consuming,
            threads=torch.get_num_threads if threads == 0 else lambda: threads,
            acquire=arenas.acquirer(program, tuple(table.arena_views)),
            release=arenas.release,
            allocate=_allocate,
            view=_view,
            fit=fit,
            watchers=_WATCHERS,
        )
        self.run.__dict__["executable"] = self
        self.run.__dict__["writes_from"] = table.writes_from
        note(self)

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        return self.run(*inputs)


def _allocate(shape: Shape, stride: Shape, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _view(tensor: torch.Tensor, shape: Shape, stride: Shape, offset: int) -> torch.Tensor:
    return torch.as_strided(tensor, shape, stride, tensor.storage_offset() + offset)


def fit(tensor: torch.Tensor, shape: Shape, stride: Shape, dtype: torch.dtype, what: str) -> torch.Tensor:
    """A library call's result in the layout the kernels after it were built for; nearly always it has it already."""
    if tensor.shape != shape or tensor.dtype is not dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise UnexpectedResult("SM023", f"{what} returned {found}, but its meta kernel says {dtype} of shape {shape}")
    if not tensor.is_neg() and not tensor._is_zerotensor():
        if tensor.stride() == stride:
            return tensor
        if all(size == 1 or have == want for size, have, want in zip(shape, tensor.stride(), stride, strict=True)):
            # The same memory; no view of it, which autograd would treat as one.
            whole = torch.empty(0, dtype=dtype, device=tensor.device)
            return whole.set_(tensor.untyped_storage(), tensor.storage_offset(), shape, stride)
    fitted = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return BASE.copy_(fitted, tensor)


class Ref(NamedTuple):
    """A tensor in an argument list or among the results: the number of a value, as it is or as a view of it."""

    value: int
    shape: Shape | None = None
    stride: Shape | None = None
    offset: Size = 0


class _Table:
    """The steps of one program as the tuples `_native.Runner` takes, every buffer a number."""

    def __init__(self, program: Program, kernels: Mapping[str, BuiltKernel], consuming: bool) -> None:
        self.program = program
        self.kernels = kernels
        self.consuming = consuming
        self.buffers: dict[str, ProgramBuffer] = {buffer.name: buffer for buffer in program.buffers}
        self.wholes = {name: Operand(name, each.spec.shape, each.spec.stride) for name, each in self.buffers.items()}
        self.refs: dict[str, Ref] = {}  # to whole buffers, which most are
        self.arena_views: dict[Operand, int] = {}
        self.writes_from: int | None = None  # the first step that writes an input
        self.product_operands: dict[int, Sequence[Operand]] = {}  # of steps that are products, by their `id`
        self.layouts = self._layouts()
        for step in program.steps:
            self._find_arena_views(step)
        names = (*program.inputs, *(name for name, _ in program.constants))
        self.numbers = {name: number for number, name in enumerate(names)}
        self.arena_first = len(names)
        made = (buffer.name for buffer in program.buffers if buffer.place in (Place.FRESH, Place.LIBRARY))
        first = self.arena_first + len(self.arena_views)
        self.numbers |= {name: first + place for place, name in enumerate(made)}
        self.count = self.arena_first + len(self.arena_views) + len(self.numbers) - len(names)

    def _layouts(self) -> dict[str, tuple[Shape, Shape]]:
        """How fresh buffers are laid out: as the one result that each is, so that no view of it need be made. Kernels
        do not care; one in Python does."""
        seen: dict[str, set[Operand]] = {}
        for output in self.program.outputs:
            if isinstance(output, Operand):
                seen.setdefault(output.buffer, set()).add(output)
        native = all(isinstance(kernel, _native.Launcher) for kernel in self.kernels.values())
        layouts = {}
        for name, buffer in self.buffers.items():
            layouts[name] = buffer.spec.shape, buffer.spec.stride
            if buffer.place is Place.FRESH and native and len(seen.get(name, ())) == 1:
                (only,) = seen[name]
                if only.offset == 0 and _extent(only.shape, only.stride) == _extent(*layouts[name]):
                    layouts[name] = only.shape, only.stride
        return layouts

    def _find_arena_views(self, step: Step) -> None:
        operands = [self.wholes[name] for name in _written(step)]
        if isinstance(step, Library):
            operands += [self.wholes[step.unless]] if step.unless is not None else []
            operands += operands_in((step.args, tuple(value for _, value in step.kwargs)))
            operands += self._find_product_operands(step)
        for operand in operands:
            if self.buffers[operand.buffer].place is Place.ARENA:
                self.arena_views.setdefault(operand, len(self.arena_views))

    def steps(self) -> tuple[tuple[Any, ...], ...]:
        made: list[tuple[Any, ...]] = []
        last_use = _last_uses(self.program)
        allocated: set[str] = set()
        for position, step in enumerate(self.program.steps):
            for name in _written(step):
                if name not in allocated and self.buffers[name].place is Place.FRESH:
                    allocated.add(name)
                    made.append(self._allocate(name))
            if self.writes_from is None and self._writes_input(step):
                self.writes_from = len(made)
            made.append(self._launch(step) if isinstance(step, Launch) else self._call(step))
            dying = tuple(self.numbers[name] for name in last_use.get(position, ()) if self._is_local(name))
            if dying:
                made.append(("drop", dying))
        return tuple(made)

    def _writes_input(self, step: Step) -> bool:
        pairs = zip(step.kernel.parameters, step.args, strict=True) if isinstance(step, Launch) else ()
        return any(
            parameter.role is not Role.INPUT and self.buffers[name].place is Place.INPUT for parameter, name in pairs
        )

    def outputs(self) -> tuple[Any, ...]:
        return tuple(self._argument(output) for output in self.program.outputs)

    def _is_local(self, name: str) -> bool:
        place = self.buffers[name].place
        return place in (Place.FRESH, Place.LIBRARY) or (place is Place.INPUT and self.consuming)

    def _allocate(self, name: str) -> tuple[Any, ...]:
        spec, (shape, stride) = self.buffers[name].spec, self.layouts[name]
        device = device_code(spec.device)
        code = -1 if device is None else dtype_code(spec.dtype)
        step = ("allocate", self.numbers[name], tuple(shape), tuple(stride), spec.dtype, spec.device, code)
        return step if device is None or spec.device.type == "cpu" else (*step, *device)

    def _launch(self, step: Launch) -> tuple[Any, ...]:
        values = tuple([self._whole(name).value for name in step.args])
        return ("launch", self.kernels[step.kernel.name], values)

    def _call(self, step: Library) -> tuple[Any, ...]:
        outs = zip(step.into, step.outs, strict=True) if step.into else ()
        named = [*step.kwargs, *((key, self.wholes[name]) for key, name in outs if name is not None)]
        arguments = tuple([self._argument(value) for value in (*step.args, *(value for _, value in named))])
        names = tuple(key for key, _ in named)
        results = () if step.into else tuple(self._result(name) for name in step.outs)
        is_one = bool(results) and len(step.op._schema.returns) == 1 and not _returns_list(step.op)
        unless = -1 if step.unless is None else self._whole(step.unless).value
        return ("call", BINDINGS.get(step.op, step.op), arguments, names, results, is_one, self._native(step), unless)

    def _result(self, name: str | None) -> tuple[Any, ...] | None:
        if name is None:
            return None
        spec = self.buffers[name].spec
        return (self.numbers[name], tuple(spec.shape), tuple(spec.stride), spec.dtype, name, dtype_code(spec.dtype))

    def _native(self, step: Library) -> NativeCall | None:
        """The same call without Python, if PyTorch's C interface has it."""
        return self._by_function(step) or self._boxed(step)

    def _by_function(self, step: Library) -> NativeCall | None:
        tensors = self.product_operands.get(id(step))
        if tensors is None:
            return None
        numbers = dict(step.kwargs)
        factors = tuple([float(numbers.get(factor, 1)) for factor in FUNCTIONS[step.op]])
        # Of the arena each operand is a tensor of its own, any other is part of the tensor that its buffer is.
        begins = [0 if self.buffers[each.buffer].place is Place.ARENA else each.offset for each in tensors]
        product_made = small_product(tensors, begins, self._dtypes(tensors))
        return function_call(step.op, tuple([self._ref(each) for each in tensors]), factors, product_made)

    def _boxed(self, step: Library) -> NativeCall | None:
        # PyTorch's own scatters copy all of the storage that their input is in, be it a whole arena.
        if step.unless is not None or step.op in _SCATTERS:
            return None
        outs = zip(step.into, step.outs, strict=True) if step.into else ()
        named = dict(step.kwargs) | {key: self.wholes[name] for key, name in outs if name is not None}
        return boxed_call(step.op, step.args, named, Operand, self._ref)


    def _find_product_operands(self, step: Library) -> Sequence[Operand]:
        """What a product's own function takes: the result, then the others; () if there is none for this step."""
        factors = FUNCTIONS.get(step.op)
        if factors is None or step.into != ("out",) or step.outs[0] is None:
            return ()
        operands = [operand for operand in step.args if isinstance(operand, Operand)]
        if len(operands) != len(step.args) or not {name for name, _ in step.kwargs} <= set(factors):
            return ()
        tensors = [self.wholes[step.outs[0]], *operands]
        if any(self.buffers[operand.buffer].spec.device.type != "cpu" for operand in tensors):
            return ()
        found = self.product_operands[id(step)] = as_called(tensors, self._dtypes(tensors))
        return found

    def _dtypes(self, operands: Sequence[Operand]) -> set[torch.dtype]:
        return {self.buffers[operand.buffer].spec.dtype for operand in operands}

    def _whole(self, name: str) -> Ref:
        found = self.refs.get(name)
        if found is None:
            found = self.refs[name] = self._ref(self.wholes[name])
        return found

    def _ref(self, operand: Operand) -> Ref:
        if self.buffers[operand.buffer].place is Place.ARENA:
            return Ref(self.arena_first + self.arena_views[operand])
        number = self.numbers[operand.buffer]
        if operand.offset == 0 and (operand.shape, operand.stride) == self.layouts[operand.buffer]:
            return Ref(number)
        return Ref(number, tuple(operand.shape), tuple(operand.stride), operand.offset)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Operand):
            return self._ref(value)
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        return tuple(self._argument(item) for item in value) if isinstance(value, tuple) else value


def _extent(shape: Shape, stride: Shape) -> tuple[Size, Size]:
    """How many elements there are, and in how many places they lie."""
    return product(shape), span(shape, stride)


def _returns_list(op: torch._ops.OpOverload) -> bool:
    return str(op._schema.returns[0].type) == "List[Tensor]"


def _written(step: Step) -> list[str]:
    """Buffers a step defines, those a kernel takes but does not write included (they are allocated already)."""
    if isinstance(step, Launch):
        return list(step.args)
    return [name for name in step.outs if name is not None]


def _last_uses(program: Program) -> dict[int, list[str]]:
    """Step position → buffers nobody needs afterwards; those the program returns are left out."""
    returned = {operand.buffer for operand in operands_in(program.outputs)}
    by_position: dict[int, list[str]] = {}
    for name, (_, position) in touches(program).items():
        if name not in returned:
            by_position.setdefault(position, []).append(name)
    return by_position
