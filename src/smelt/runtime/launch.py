"""Running a kernel program: `Program` + built kernels → a Python callable from flat tensors to flat outputs.

The steps are written out as one Python function, which is what `Executable.source` shows:

    def run(x, w):
        arena = take()
        try:
            out = empty_strided((4, 8), (8, 1), dtype=float32, device=cpu)
            mm_out(x, as_strided(w, (8, 8), (1, 8), w.storage_offset()), out=arena[0])
            k0_relu(threads(), arena[0], out)
            return (out,)
        finally:
            give(arena)

(there with a prefix on every name but those of buffers, which the graph chose and may be anything)

An arena is one block of planned memory with the views that library calls and kernels need already made. It is kept
between calls, so that pages are faulted in once, and shared by the halves of a training step; calls that overlap in
time each take their own.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt import _native
from smelt.base.errors import UnexpectedResult
from smelt.base.sizes import Shape
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer, Step

ARENA_ALIGNMENT = 64

# Before the names of everything in the source that is not a buffer: buffers are named after graph nodes, and an
# operator may well be called `take` or `fit`.
P = "smelt_"

BuiltKernel = Callable[..., None]

# The same operators by PyTorch's own Python bindings, which cost half of what a call through `torch.ops` does.
def _scatter(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A copy of a tensor with a part of it replaced. PyTorch's own would copy all of the memory the tensor lies in."""

    def call(whole: torch.Tensor, part: torch.Tensor, *where: Any, **named: Any) -> torch.Tensor:
        made = whole.clone()
        view(made, *where, **named).copy_(part)
        return made

    return call


BINDINGS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    torch.ops.aten.mm.out: torch.mm,
    torch.ops.aten.bmm.out: torch.bmm,
    torch.ops.aten.addmm.out: torch.addmm,
    torch.ops.aten.baddbmm.out: torch.baddbmm,
    torch.ops.aten.convolution.default: torch.convolution,
    torch.ops.aten.embedding.default: torch.embedding,
    torch.ops.aten.select_scatter.default: _scatter(torch.select),
    torch.ops.aten.slice_scatter.default: _scatter(torch.ops.aten.slice.Tensor),
    torch.ops.aten.diagonal_scatter.default: _scatter(torch.diagonal),
}


def launcher(address: int, buffers: int, fixed_workspace: int, per_thread_workspace: int) -> BuiltKernel:
    """A callable `(threads, *tensors)` for machine code at `address`."""
    return _native.Launcher(address, buffers, fixed_workspace, per_thread_workspace)


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
        arenas: "Arenas | None" = None,
    ) -> None:
        self.program = program
        self.keep_alive = keep_alive  # owns the machine code
        writer = _Writer(program, consuming)
        self.source = writer.source()
        names = dict(writer.names)
        names.update({P + kernel.name: kernels[kernel.name] for kernel in program.kernels})
        names[P + "threads"] = torch.get_num_threads if threads == 0 else lambda: threads
        arenas = arenas if arenas is not None else Arenas()
        names[P + "take"] = arenas.taker(program, tuple(writer.arena_views))
        names[P + "give"] = arenas.give
        exec(compile(self.source, f"<smelt program {program.name}>", "exec"), names)
        self.run: Callable[..., tuple[Any, ...]] = names[P + "run"]
        self.run.__dict__["executable"] = self

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        return self.run(*inputs)


def fit(tensor: torch.Tensor, shape: Shape, stride: Shape, dtype: torch.dtype, what: str) -> torch.Tensor:
    """A library call's result in the layout the kernels after it were built for; nearly always it has it already."""
    if tensor.shape != shape or tensor.dtype is not dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise UnexpectedResult("SM023", f"{what} yields {found}, described as {dtype} of shape {shape}")
    if tensor.stride() == stride and not tensor.is_neg() and not tensor._is_zerotensor():
        return tensor
    fitted = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return fitted.copy_(tensor)


class _Views(list[torch.Tensor]):
    """What one program sees of an arena, in the order its source counts them."""

    arena: "_Arena"


class _Arena:
    """One block of memory a device, and what each program sees of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: dict[torch.device, torch.Tensor] = {}
        self.views: dict[int, _Views] = {}

    def see(self, program: Program, views: tuple[Operand, ...]) -> _Views:
        buffers = {buffer.name: buffer for buffer in program.buffers}
        made = _Views()
        made.arena = self
        for view in views:
            buffer = buffers[view.buffer]
            device, dtype = buffer.spec.device, buffer.spec.dtype
            if device not in self.blocks:
                self.blocks[device] = _aligned_block(self.size, device)
            typed = self.blocks[device][buffer.offset :]
            typed = typed[: typed.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
            made.append(typed.as_strided(view.shape, view.stride, typed.storage_offset() + view.offset))
        return made


class Arenas:
    """Planned memory of programs that run in turn, as the halves of a training step do: they use the same blocks."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[_Arena] = []
        self.programs = itertools.count()

    def taker(self, program: Program, views: tuple[Operand, ...]) -> Callable[[], _Views]:
        """A function that takes an arena as `program` sees it: one that is free, or a new one."""
        number, needed = next(self.programs), int(program.arena_bytes)
        self.size = max(self.size, needed)

        def take() -> _Views:
            try:
                arena = self.free.pop()
            except IndexError:
                arena = _Arena(self.size)
            if arena.size < needed:
                arena = _Arena(self.size)  # made before a program with more needs joined; it is dropped
            seen = arena.views.get(number)
            if seen is None:
                seen = arena.views[number] = arena.see(program, views)
            return seen

        return take

    def give(self, views: _Views) -> None:
        self.free.append(views.arena)


def _aligned_block(size: int, device: torch.device) -> torch.Tensor:
    block = torch.empty(size + ARENA_ALIGNMENT, dtype=torch.uint8, device=device)
    skip = -block.data_ptr() % ARENA_ALIGNMENT
    return block[skip : skip + size]


class _Writer:
    """Writes the steps of one program as Python source, collecting the objects the source names."""

    def __init__(self, program: Program, consuming: bool) -> None:
        self.program = program
        self.consuming = consuming
        self.buffers: dict[str, ProgramBuffer] = {buffer.name: buffer for buffer in program.buffers}
        self.names: dict[str, Any] = {
            P + "empty_strided": torch.empty_strided,
            P + "as_strided": torch.as_strided,
            P + "fit": fit,
        }
        self.arena_views: dict[Operand, int] = {}
        self._objects: dict[int, str] = {}
        for name, tensor in program.constants:
            self.names[name] = tensor

    def source(self) -> str:
        program = self.program
        body: list[str] = []
        last_use = _last_uses(program)
        allocated = {name for name, buffer in self.buffers.items() if buffer.place in (Place.INPUT, Place.CONSTANT)}
        for position, step in enumerate(program.steps):
            for name in _written(step):
                if name not in allocated:
                    allocated.add(name)
                    body += self._allocate(name)
            body.append(self._step(step))
            dying = [name for name in last_use.get(position, ()) if self._is_local(name)]
            if dying:
                body.append(f"del {', '.join(dying)}")
        result = ", ".join(self._output(output) for output in program.outputs)
        returned = f"return ({result},)" if program.outputs else "return ()"
        if self.arena_views:
            inside = [f"    {line}" for line in [*body, returned]]
            body = [f"{P}arena = {P}take()", "try:", *inside, "finally:", f"    {P}give({P}arena)"]
        else:
            body.append(returned)
        if self.consuming:
            taken = [f"({', '.join(program.inputs)},) = {P}given"] if program.inputs else []
            body = [*taken, f"{P}given.clear()", *body]
        taking = f"{P}given" if self.consuming else ", ".join(program.inputs)
        lines = [f"def {P}run({taking}):", *(f"    {line}" for line in body)]
        return "\n".join(lines) + "\n"

    def _is_local(self, name: str) -> bool:
        place = self.buffers[name].place
        return place in (Place.FRESH, Place.LIBRARY) or (place is Place.INPUT and self.consuming)

    def _allocate(self, name: str) -> list[str]:
        buffer = self.buffers[name]
        if buffer.place is not Place.FRESH:
            return []
        spec = buffer.spec
        dtype, device = self._name_object("dtype", spec.dtype), self._name_object("device", spec.device)
        return [f"{name} = {P}empty_strided({spec.shape}, {spec.stride}, dtype={dtype}, device={device})"]

    def _step(self, step: Step) -> str:
        if isinstance(step, Launch):
            words = [f"{P}threads()", *(self._whole(name) for name in step.args)]
            return f"{P}{step.kernel.name}({', '.join(words)})"
        return self._library(step)

    def _library(self, step: Library) -> str:
        function = self._name_object(str(step.op).replace(".", "_"), BINDINGS.get(step.op, step.op))
        words = [self._argument(argument) for argument in step.args]
        words += [f"{name}={self._argument(value)}" for name, value in step.kwargs]
        if step.into:
            words += [
                f"{key}={self._whole(name)}" for key, name in zip(step.into, step.outs, strict=True) if name is not None
            ]
            return f"{function}({', '.join(words)})"
        call = f"{function}({', '.join(words)})"
        if not step.outs:
            return call
        if len(step.op._schema.returns) == 1 and not _returns_list(step.op):
            return f"{step.outs[0]} = {self._fitted(step.outs[0], call)}" if step.outs[0] is not None else call
        targets = [name if name is not None else f"{P}unused" for name in step.outs]
        assigned = f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {call}"
        fits = [f"{name} = {self._fitted(name, name)}" for name in step.outs if name is not None]
        return "; ".join([assigned, *fits])

    def _fitted(self, name: str, call: str) -> str:
        spec = self.buffers[name].spec
        dtype = self._name_object("dtype", spec.dtype)
        return f"{P}fit({call}, {_tuple(spec.shape)}, {_tuple(spec.stride)}, {dtype}, {name!r})"

    def _whole(self, name: str) -> str:
        spec = self.buffers[name].spec
        return self._operand(Operand(name, spec.shape, spec.stride, 0))

    def _operand(self, operand: Operand) -> str:
        buffer = self.buffers[operand.buffer]
        if buffer.place is Place.ARENA:
            position = self.arena_views.setdefault(operand, len(self.arena_views))
            return f"{P}arena[{position}]"
        if operand.offset == 0 and operand.shape == buffer.spec.shape and operand.stride == buffer.spec.stride:
            return operand.buffer
        offset = f"{operand.buffer}.storage_offset()" + (f" + {operand.offset}" if operand.offset else "")
        return f"{P}as_strided({operand.buffer}, {_tuple(operand.shape)}, {_tuple(operand.stride)}, {offset})"

    def _output(self, output: Any) -> str:
        return self._operand(output) if isinstance(output, Operand) else repr(output)

    def _argument(self, value: Any) -> str:
        if isinstance(value, Operand):
            return self._operand(value)
        if isinstance(value, list):
            return "[" + ", ".join(self._argument(item) for item in value) + "]"
        if isinstance(value, tuple):
            return "(" + "".join(self._argument(item) + ", " for item in value) + ")"
        if value is None or type(value) in (int, bool, str):
            return repr(value)
        return self._name_object(type(value).__name__, value)

    def _name_object(self, stem: str, value: Any) -> str:
        """A name for an object the source must refer to; the same object keeps its name."""
        known = self._objects.get(id(value))
        if known is None:
            known = self._objects[id(value)] = f"{P}{stem}_{len(self._objects)}"
            self.names[known] = value
        return known


def _tuple(sizes: Shape) -> str:
    return repr(tuple(sizes))


def _returns_list(op: torch._ops.OpOverload) -> bool:
    return str(op._schema.returns[0].type) == "List[Tensor]"


def _written(step: Step) -> list[str]:
    """Buffers a step defines, those a kernel takes but does not write included (they are allocated already)."""
    if isinstance(step, Launch):
        return list(step.args)
    return [name for name in step.outs if name is not None]


def _buffers_in(value: Any) -> list[str]:
    if isinstance(value, Operand):
        return [value.buffer]
    if isinstance(value, tuple | list):
        return [name for item in value for name in _buffers_in(item)]
    return []


def _last_uses(program: Program) -> dict[int, list[str]]:
    """Step position → buffers nobody needs afterwards; those the program returns are left out."""
    last: dict[str, int] = {}
    for position, step in enumerate(program.steps):
        used = _written(step)
        if isinstance(step, Library):
            used = used + _buffers_in(step.args) + _buffers_in(tuple(value for _, value in step.kwargs))
        for name in used:
            last[name] = position
    for name in _buffers_in(program.outputs):
        last.pop(name, None)
    by_position: dict[int, list[str]] = {}
    for name, position in last.items():
        by_position.setdefault(position, []).append(name)
    return by_position
