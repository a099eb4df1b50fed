"""The program of a process as text: a line per tensor and per step, as `SMELT_LOGS` and people read it.

    program p: 2 inputs, 0 constants, 0 in an arena of 0 bytes
      %0 x: float32[4, 8], input
      %1 w: float32[8, 8], input
      %2 out: float32[4, 8], made
      0  %2 = allocate
      1  aten::mm.out(%0, %1, out=%2)                natively: aoti_torch_cpu_mm_out
      2  k0_relu(%2)
      return (%2,)
"""

from typing import Any

from smelt.ir.table.records import Allocate, Call, Drop, Launch, Layout, ProgramTable, Ref, Step, Tensor
from smelt.symbolic.shapes import contiguous_stride


def text_of(table: ProgramTable) -> str:
    """The lines of a program."""
    program = table.program
    lines = [
        f"program {table.name}: {program.inputs} inputs, {program.constants} constants, "
        f"{program.arena} views of an arena of {program.arena_bytes} bytes{', consuming' * program.consuming}"
    ]
    for number, tensor in enumerate(table.tensors):
        lines.append(f"  %{number} {tensor.name}: {_type(tensor)}, {_place(table, number)}")
    lines += [f"  {number:<3}{_step(table, step)}" for number, step in enumerate(table.steps)]
    lines.append(f"  return {_argument(program.output)}")
    return "\n".join(lines)


def _place(table: ProgramTable, number: int) -> str:
    program = table.program
    if number >= len(table.tensors) - program.arena:
        return f"arena at {table.tensors[number].arena_offset}"
    first_made = program.inputs + program.constants
    return "input" if number < program.inputs else "constant" if number < first_made else "made"


def _type(tensor: Tensor) -> str:
    shape, stride, offset = tensor.layout
    text = f"{str(tensor.dtype).removeprefix('torch.')}{list(shape)}"
    if stride != contiguous_stride(shape):
        text += f" strides {list(stride)}"
    return f"{text} from {offset}" if offset else text


def _step(table: ProgramTable, step: Step) -> str:
    if isinstance(step, Allocate):
        return f"%{step.value} = allocate"
    if isinstance(step, Launch):
        return f"{table.kernels[step.kernel].name}({_values(step.values)})"
    if isinstance(step, Drop):
        return f"drop {_values(step.values)}"
    assert isinstance(step, Call)
    return _call(step)


def _call(step: Call) -> str:
    plain = len(step.arguments) - len(step.names)
    arguments = [_argument(each) for each in step.arguments[:plain]]
    named = zip(step.names, step.arguments[plain:], strict=True)
    arguments += [f"{name}={_argument(each)}" for name, each in named]
    results = ", ".join("_" if value is None else f"%{value}" for value in step.results)
    text = f"{results} = " * bool(results) + f"{step.name}({', '.join(arguments)})"
    if step.unless is not None:
        text += f" unless %{step.unless}"
    native = step.native
    if native is None:
        return text
    if native.product:
        return f"{text}  natively, without a call"
    return f"{text}  natively" + ("" if native.overload is not None else f", by {native.name}")


def _values(values: tuple[int, ...]) -> str:
    return ", ".join(f"%{value}" for value in values)


def _view(layout: Layout) -> str:
    return f"{list(layout.shape)} strides {list(layout.stride)} from {layout.offset}"


def _argument(value: Any) -> str:
    if isinstance(value, Ref):
        return f"%{value.value}" if value.layout is None else f"%{value.value}[{_view(value.layout)}]"
    if isinstance(value, list):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_argument, value))}{',' * (len(value) == 1)})"
    return str(value) if type(value).__module__ == "torch" else repr(value)
