"""A flat program as text: a line per value and per step, as `SMELT_LOGS` and people read it.

    flat program p: 2 inputs, 0 constants, 0 in an arena of 0 bytes
      %0 x: float32[4, 8], input
      %1 w: float32[8, 8], input
      %2 out: float32[4, 8], made
      0  %2 = allocate
      1  aten::mm.out(%0, %1, out=%2)                natively: aoti_torch_cpu_mm_out
      2  k0_relu(%2)
      return (%2,)
"""

from typing import Any

from smelt.ir.flat.steps import AllocateStep, CallStep, DropStep, FlatProgram, FlatStep, FlatValue, LaunchStep, Ref
from smelt.symbolic.shapes import contiguous_stride


def text_of(program: FlatProgram) -> str:
    """The lines of a program."""
    lines = [
        f"flat program {program.name}: {program.inputs} inputs, {len(program.constants)} constants, "
        f"{program.arena} views of an arena of {program.arena_bytes} bytes{', consuming' * program.consuming}"
    ]
    for number, value in enumerate(program.values):
        lines.append(f"  %{number} {value.name}: {_layout(value)}, {_place(program, number)}")
    lines += [f"  {number:<3}{_step(step)}" for number, step in enumerate(program.steps)]
    lines.append(f"  return {_argument(program.outputs)}")
    return "\n".join(lines)


def _place(program: FlatProgram, number: int) -> str:
    first_made = program.inputs + len(program.constants)
    if number >= len(program.values) - program.arena:
        return f"arena at {program.values[number].arena_offset}"
    return "input" if number < program.inputs else "constant" if number < first_made else "made"


def _layout(value: FlatValue) -> str:
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.stride != contiguous_stride(value.shape):
        text += f" strides {list(value.stride)}"
    return f"{text} from {value.offset}" if value.offset else text


def _step(step: FlatStep) -> str:
    if isinstance(step, AllocateStep):
        return f"%{step.value} = allocate"
    if isinstance(step, LaunchStep):
        return f"{step.kernel}({_values(step.values)})"
    if isinstance(step, DropStep):
        return f"drop {_values(step.values)}"
    return _call(step)


def _call(step: CallStep) -> str:
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


def _argument(value: Any) -> str:
    if isinstance(value, Ref):
        if value.shape is None:
            return f"%{value.value}"
        assert value.stride is not None
        return f"%{value.value}[{list(value.shape)} strides {list(value.stride)} from {value.offset}]"
    if isinstance(value, list):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_argument, value))}{',' * (len(value) == 1)})"
    return str(value) if type(value).__module__ == "torch" else repr(value)
