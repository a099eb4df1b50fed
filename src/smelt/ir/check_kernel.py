"""The rules of the kernel form, as code: `check_kernel` and `check_program` raise on the first one broken.

A rule is a small function that yields `(place, fault)` pairs, the place being the buffer, stage, instruction or step at
fault; `KERNEL_RULES` and `PROGRAM_RULES` list them all.

    SM022: kernel add breaks rule "stores": y is f32, the value b is f64
          store y[j] = b          ← the lines round the fault follow
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import torch

from smelt.base.errors import SpecError
from smelt.ir.check_program import PROGRAM_RULES
from smelt.ir.kernel import (
    Access,
    Accumulate,
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Contract,
    Factor,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Role,
    Scan,
    Scatter,
    Softmax,
    Stage,
    Store,
    WeightedSum,
    indices_of,
    members,
)
from smelt.ir.program import Program
from smelt.ir.scalar import SCALAR_OPS, kind_of
from smelt.ir.tensorspec import short_name
from smelt.ir.text import excerpt, format_index, kernel_lines, program_lines
from smelt.symbolic.shapes import Size

Fault = tuple[object, str]

KERNEL_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
NARROW_FLOATS = (torch.float16, torch.bfloat16)
SMALL_INTEGERS = (torch.int8, torch.uint8)  # all of them are exact in each dtype of floats


def value_dtypes(kernel: Kernel) -> dict[str, torch.dtype]:
    """The dtype of every value a kernel names. Names that are not defined are left out, for the rules to find."""
    buffers = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    dtypes: dict[str, torch.dtype] = {}
    for instruction in kernel.instructions():
        match instruction:
            case Const(out, _, dtype) | Compute(out, _, _, dtype) | Cast(out, _, dtype) | Contract(out, dtype=dtype):
                dtypes[out] = dtype
            case (Load(out, buffer, _) | Gather(out, buffer, _, _)) if buffer in buffers:
                dtypes[out] = buffers[buffer]
            case Position(out, _):
                dtypes[out] = torch.int64
            case (Reduce(out, _, value) | Scan(out, _, value)) if value in dtypes:
                dtypes[out] = dtypes[value]
            case Softmax(out, value, sums) if value in dtypes:
                dtypes[out] = dtypes[sums] = dtypes[value]
    return dtypes


def operands(instruction: Instruction) -> tuple[str, ...]:
    """The values an instruction uses."""
    match instruction:
        case Compute(_, _, args, _):
            return args
        case Gather(_, _, _, by):
            return tuple(value for value, _, _ in by)
        case Scatter(_, _, _, by, value):
            return (*(place for place, _, _ in by), value)
        case Cast(_, value, _) | Reduce(_, _, value) | Scan(_, _, value) | Store(_, _, value):
            return (value,)
        case Accumulate(_, _, _, value) | Softmax(_, value, _) | WeightedSum(value=value):
            return (value,)
    return ()


def result(instruction: Instruction) -> str | None:
    """The value an instruction defines at its point."""
    return None if isinstance(instruction, Store | Accumulate | Scatter | WeightedSum) else instruction.out


def row_result(instruction: Instruction) -> str | None:
    """The value an instruction leaves for later stages of its row."""
    if isinstance(instruction, Softmax):
        return instruction.sums or None
    return instruction.out if isinstance(instruction, Reduce) else None


def _staged(kernel: Kernel) -> Iterator[tuple[Stage, Instruction]]:
    for stage in kernel.stages:
        for instruction in stage.body:
            yield stage, instruction


def _indexed(kernel: Kernel) -> Iterator[tuple[Stage, Access]]:
    return _of_kind(kernel, Access)


def _of_kind(kernel: Kernel, *kinds: Any) -> Iterator[tuple[Stage, Any]]:
    """Instructions of these kinds; of accesses, those to buffers that exist."""
    names = {buffer.name for buffer in kernel.buffers}
    for stage, instruction in _staged(kernel):
        if isinstance(instruction, kinds) and (not isinstance(instruction, Access) or instruction.buffer in names):
            yield stage, instruction


def contraction_of(kernel: Kernel) -> Contract | None:
    """The kernel's contraction, if it has one."""
    return next((each for each in kernel.instructions() if isinstance(each, Contract)), None)


def is_attention(kernel: Kernel) -> bool:
    """Whether it weighs what its loop computes."""
    return any(isinstance(each, WeightedSum) for each in kernel.instructions())


def _factors(kernel: Kernel) -> Iterator[tuple[Contract | WeightedSum, Factor]]:
    for instruction in kernel.instructions():
        if isinstance(instruction, Contract | WeightedSum):
            yield from ((instruction, factor) for factor in instruction.factors)


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


# The shape of the kernel.


def _rule_axes(kernel: Kernel) -> Iterator[Fault]:
    axes = kernel.rows + kernel.cols
    yield from _axes_faults(kernel, axes)
    for stage in kernel.stages:
        if stage.steps is not None:
            yield from _axes_faults(stage, (*axes, stage.steps))
    for stage, instruction in _of_kind(kernel, Contract, WeightedSum):
        yield from _axes_faults(instruction, axes + instruction.axes + ((stage.steps,) if stage.steps else ()))


def _axes_faults(place: object, axes: tuple[Axis, ...]) -> Iterator[Fault]:
    for name in _repeated(axis.name for axis in axes):
        yield place, f"two axes are named {name}"
    for axis in axes:
        if axis.size < 0:
            yield place, f"axis {axis.name} has size {axis.size}"


def _rule_buffers(kernel: Kernel) -> Iterator[Fault]:
    for name in _repeated(buffer.name for buffer in kernel.buffers):
        yield kernel.buffer(name), f"two buffers are named {name}"
    for buffer in kernel.buffers:
        if buffer.dtype not in KERNEL_DTYPES:
            yield buffer, f"no kernel works on {short_name(buffer.dtype)}"
        if buffer.on_host and (buffer.role is not Role.INPUT or buffer.size != 1):
            yield buffer, f"{buffer.name} is more than a number that the host reads"


def _rule_buffers_known(kernel: Kernel) -> Iterator[Fault]:
    names = {buffer.name for buffer in kernel.buffers}
    for _, instruction in _staged(kernel):
        if isinstance(instruction, Access | WeightedSum) and instruction.buffer not in names:
            yield instruction, f"there is no buffer {instruction.buffer}"
    for contraction, factor in _factors(kernel):
        for element in factor.elements:
            if element.buffer not in names:
                yield contraction, f"there is no buffer {element.buffer}"


# Values.


def _rule_defined_once(kernel: Kernel) -> Iterator[Fault]:
    seen: set[str] = set()
    for instruction in kernel.instructions():
        for name in dict.fromkeys((result(instruction), row_result(instruction))):
            if name in seen:
                yield instruction, f"{name} is defined twice"
            if name is not None:
                seen.add(name)


def _rule_visible(kernel: Kernel) -> Iterator[Fault]:
    """Loop values stay in their stage; row values and reductions are seen by later stages."""
    anywhere = {name for each in kernel.instructions() for name in (result(each), row_result(each))}
    lasting: set[str] = set()
    for stage in kernel.stages:
        here: set[str] = set()
        pending: set[str] = set()
        for instruction in stage.body:
            for name in operands(instruction):
                if name in here or name in lasting:
                    continue
                known = "is not visible here" if name in anywhere else "is not defined"
                yield instruction, f"{name} {known}"
            out, left = result(instruction), row_result(instruction)
            if left is not None:
                pending.add(left)
            if out is not None and out != left:
                here.add(out)
        lasting |= pending if stage.loop else here


def _rule_operands(kernel: Kernel) -> Iterator[Fault]:
    """Operators exist, have the right number of operands, of one dtype they are defined on, and give what they say."""
    dtypes = value_dtypes(kernel)
    for _, instruction in _of_kind(kernel, Compute):
        op = SCALAR_OPS.get(instruction.op)
        if op is None:
            yield instruction, f"there is no operation {instruction.op}"
        elif len(instruction.args) != op.arity:
            yield instruction, f"{op.name} takes {op.arity} operands"
        elif all(name in dtypes for name in instruction.args):
            operand_dtypes = [dtypes[name] for name in instruction.args]
            fault = _operand_fault(op.name, operand_dtypes, instruction.dtype)
            if fault:
                yield instruction, fault


def _operand_fault(name: str, dtypes: list[torch.dtype], out: torch.dtype) -> str | None:
    op = SCALAR_OPS[name]
    if name == "where":
        condition, *dtypes = dtypes
        if condition is not torch.bool:
            return f"where chooses by a bool, not by {short_name(condition)}"
    if len(set(dtypes)) != 1:
        return f"operands of {name} differ: {', '.join(map(short_name, dtypes))}"
    if kind_of(dtypes[0]) not in op.kinds:
        return f"{name} is not defined on {short_name(dtypes[0])}"
    expected = torch.bool if op.result == "bool" else dtypes[0]
    return None if out is expected else f"{name} of {short_name(dtypes[0])} gives {short_name(expected)}"


def _rule_narrow(kernel: Kernel) -> Iterator[Fault]:
    dtypes = value_dtypes(kernel)
    for instruction in kernel.instructions():
        computes = isinstance(instruction, Compute | Reduce | Scan | Accumulate | Softmax)
        if not computes and not (isinstance(instruction, Scatter) and instruction.op):
            continue
        for name in operands(instruction):
            if dtypes.get(name) in NARROW_FLOATS:
                yield instruction, f"{name} is {short_name(dtypes[name])}: cast it to f32 before arithmetic"


def _rule_constants(kernel: Kernel) -> Iterator[Fault]:
    for instruction in kernel.instructions():
        if isinstance(instruction, Const) and not _fits(instruction.value, instruction.dtype):
            yield instruction, f"{instruction.value!r} is no {short_name(instruction.dtype)}"
        if isinstance(instruction, Const | Cast) and instruction.dtype not in KERNEL_DTYPES:
            yield instruction, f"no kernel works on {short_name(instruction.dtype)}"


def _fits(value: float | bool, dtype: torch.dtype) -> bool:
    if dtype is torch.bool or isinstance(value, bool):
        return dtype is torch.bool and isinstance(value, bool)
    if dtype.is_floating_point:
        return True
    if not isinstance(value, int) or dtype not in KERNEL_DTYPES:
        return False
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max


# Positions.


def _rule_index_axes(kernel: Kernel) -> Iterator[Fault]:
    """Indices name axes that run where they stand, in axis order, with strides other than zero."""
    for stage, instruction in _staged(kernel):
        axes = stage.axes(kernel)
        own = instruction.axes if isinstance(instruction, Contract | WeightedSum) else ()
        for index in indices_of(instruction):
            yield from _index_faults(instruction, index, axes + own)


def _index_faults(place: Instruction, index: Index, axes: tuple[Axis, ...]) -> Iterator[Fault]:
    order = [axis.name for axis in axes]
    named = [name for name, _ in index.terms]
    unknown = [name for name in named if name not in order]
    if unknown:
        yield place, f"no axis {unknown[0]} runs here"
    elif [name for name in order if name in named] != named:
        yield place, f"the index names its axes out of order or twice: {', '.join(named)}"
    if any(stride == 0 for _, stride in index.terms):
        yield place, "the index has a stride of zero"


def index_range(index: Index, axes: Iterable[Axis]) -> tuple[Size, Size]:
    """The lowest and highest position an index reaches while each axis runs over its extent."""
    low = high = index.offset
    for axis in axes:
        reach = index.stride(axis.name) * (axis.size - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def factor_range(factor: Factor, axes: Sequence[Axis]) -> tuple[Size, Size] | None:
    """The lowest and highest position a factor reads within its bounds; None if it reads nothing.

    The index is split into multiples of the bounded positions and a rest: `W·(oh + kh - 1) + (ow + kw - 1) + …`
    """
    if any(axis.size == 0 for axis in axes):
        return None
    rest, low, high = factor.index, 0, 0
    for position, extent in factor.bounds:
        reached = index_range(position, axes)
        first, last = max(reached[0], 0), min(reached[1], extent - 1)
        if first > last:
            return None
        times = min((0, *_multiples(rest, position)), key=lambda n: _width(_less(rest, position, n), axes))
        rest = _less(rest, position, times)
        ends = times * first, times * last
        low, high = low + min(ends), high + max(ends)
    within = index_range(rest, axes)
    return low + within[0], high + within[1]


def _multiples(index: Index, position: Index) -> set[Size]:
    """How often the position may be in the index, by the strides they have along each axis."""
    return {index.stride(name) // stride for name, stride in position.terms}


def _less(index: Index, position: Index, times: Size) -> Index:
    names = dict.fromkeys(name for name, _ in (*index.terms, *position.terms))
    terms = [(name, index.stride(name) - times * position.stride(name)) for name in names]
    return Index(tuple(term for term in terms if term[1]), index.offset - times * position.offset)


def _width(index: Index, axes: Iterable[Axis]) -> Size:
    low, high = index_range(index, axes)
    return high - low


def _rule_bounds(kernel: Kernel) -> Iterator[Fault]:
    axes = (*kernel.rows, *kernel.cols, *(stage.steps for stage in kernel.stages if stage.steps))
    for stage, instruction in _indexed(kernel):
        if any(axis.size == 0 for axis in stage.axes(kernel)):
            continue
        low, high = index_range(instruction.index, axes)
        for _, stride, extent in instruction.by if isinstance(instruction, Gather | Scatter) else ():
            low, high = low + min(stride * (extent - 1), 0), high + max(stride * (extent - 1), 0)
        size = kernel.buffer(instruction.buffer).size
        if low < 0 or high >= size:
            yield instruction, f"positions {low} to {high} of a buffer of {size}"
    sizes = {buffer.name: buffer.size for buffer in kernel.buffers}
    sums = [each for each in kernel.instructions() if isinstance(each, WeightedSum)]
    written = [(each, Factor(each.buffer, each.index)) for each in sums]
    for contraction, factor in (*_factors(kernel), *written):
        reads = factor_range(factor, axes + contraction.axes)
        if reads is None:
            continue
        packed = 2 if factor.quantized is not None and factor.quantized.is_packed else 1
        ranges = [(factor.buffer, packed, reads)]
        ranges += [(each.buffer, 1, index_range(each.index, axes + contraction.axes)) for each in factor.elements[1:]]
        for buffer, count, (low, high) in ranges:
            size = sizes.get(buffer, high + 1) * count
            if not 0 <= low <= high < size:
                yield contraction, f"positions {low} to {high} of a buffer of {size}"


def _rule_gathers(kernel: Kernel) -> Iterator[Fault]:
    """Places that depend on data are counted in int64; what is read there this kernel does not write."""
    dtypes = value_dtypes(kernel)
    for _, instruction in _of_kind(kernel, Gather, Scatter):
        if isinstance(instruction, Gather) and kernel.buffer(instruction.buffer).role is not Role.INPUT:
            yield instruction, f"{instruction.buffer} is written here: where it is read is not known"
        for name, _, extent in instruction.by:
            if dtypes.get(name, torch.int64) is not torch.int64:
                yield instruction, f"{name} is {short_name(dtypes[name])}: places are counted in i64"
            if extent < 1:
                yield instruction, f"{name} counts to below {extent}"


def _rule_scratch_columns(kernel: Kernel) -> Iterator[Fault]:
    cols = {axis.name for axis in kernel.cols}
    for _, instruction in _indexed(kernel):
        if kernel.buffer(instruction.buffer).role is Role.SCRATCH and not instruction.index.axes <= cols:
            yield instruction, f"scratch {instruction.buffer} is private to a row: index it by cols only"


# Roles of buffers.


def _rule_inputs_kept(kernel: Kernel) -> Iterator[Fault]:
    for _, instruction in _indexed(kernel):
        if not isinstance(instruction, Load | Gather) and kernel.buffer(instruction.buffer).role is Role.INPUT:
            yield instruction, f"input {instruction.buffer} is written"


def _rule_outputs_written(kernel: Kernel) -> Iterator[Fault]:
    written = {instruction.buffer for _, instruction in _indexed(kernel) if not isinstance(instruction, Load | Gather)}
    written |= {each.buffer for each in kernel.instructions() if isinstance(each, WeightedSum)}
    for buffer in kernel.buffers:
        if buffer.role in (Role.OUTPUT, Role.INOUT) and buffer.name not in written:
            yield buffer, f"{buffer.name} is never written"


def _rule_read_back(kernel: Kernel) -> Iterator[Fault]:
    """What this kernel writes it may read only where it wrote before; an update in place reads where it writes."""
    stores = {(i.buffer, i.index) for _, i in _indexed(kernel) if isinstance(i, Store)}
    stored: set[tuple[str, Index]] = set()
    for _, instruction in _indexed(kernel):
        place = (instruction.buffer, instruction.index)
        if isinstance(instruction, Store):
            stored.add(place)
        if not isinstance(instruction, Load):
            continue
        role = kernel.buffer(instruction.buffer).role
        if role is Role.INOUT and place not in stores:
            yield instruction, f"inout {instruction.buffer} is read where it is not written"
        if role in (Role.OUTPUT, Role.SCRATCH) and place not in stored:
            yield instruction, f"{instruction.buffer} is read before this position was stored"


def _rule_stores(kernel: Kernel) -> Iterator[Fault]:
    dtypes = value_dtypes(kernel)
    for _, instruction in _indexed(kernel):
        if isinstance(instruction, Load | Gather) or instruction.value not in dtypes:
            continue
        want, have = kernel.buffer(instruction.buffer).dtype, dtypes[instruction.value]
        # A sum kept in f32 may end in a narrower buffer: it is rounded once, when the fold is complete.
        folds = isinstance(instruction, Accumulate) or (isinstance(instruction, Scatter) and instruction.op is not None)
        rounded = folds and have is torch.float32 and want in NARROW_FLOATS
        if have is not want and not rounded:
            yield (
                instruction,
                f"{instruction.buffer} is {short_name(want)}, the value {instruction.value} is {short_name(have)}",
            )


def _collides(index: Index, axes: Iterable[Axis]) -> str | None:
    """Why two points of `axes` may share a position, or None when each has its own."""
    reach = 0
    running = [(abs(index.stride(axis.name)), axis) for axis in axes if axis.size > 1]
    for stride, axis in sorted(running, key=lambda pair: pair[0]):
        if stride == 0:
            return f"the index {format_index(index)} leaves out axis {axis.name}"
        if stride <= reach:
            return f"points of the index {format_index(index)} share positions"
        reach += stride * (axis.size - 1)
    return None


def _rule_store_apart(kernel: Kernel) -> Iterator[Fault]:
    """No two points of the loop store to one position: rows run in any order."""
    for stage, instruction in _of_kind(kernel, Store):
        private = kernel.buffer(instruction.buffer).role is Role.SCRATCH
        axes = (kernel.cols if stage.loop else ()) if private else stage.axes(kernel)
        fault = _collides(instruction.index, axes)
        if fault:
            yield instruction, f"{fault}: stores collide"


# Folds.


def _rule_reduce_in_loop(kernel: Kernel) -> Iterator[Fault]:
    for stage, instruction in _of_kind(kernel, Reduce, Scan):
        if not stage.loop:
            word = "reduce" if isinstance(instruction, Reduce) else "scan"
            yield instruction, f"{word} folds over cols and stands in a loop stage only"


def _rule_scans(kernel: Kernel) -> Iterator[Fault]:
    """A scan runs along a col axis, in the same direction as all others along it: that is the order of the loop."""
    directions: dict[str, bool] = {}
    for _, instruction in _of_kind(kernel, Scan):
        if instruction.axis not in {axis.name for axis in kernel.cols}:
            yield instruction, f"{instruction.axis} is no axis of the cols"
        if directions.setdefault(instruction.axis, instruction.backwards) is not instruction.backwards:
            yield instruction, f"{instruction.axis} is run along both ways"


def _rule_fold_dtypes(kernel: Kernel) -> Iterator[Fault]:
    dtypes = value_dtypes(kernel)
    for instruction in kernel.instructions():
        if not isinstance(instruction, Reduce | Scan | Accumulate | Scatter):
            continue
        if instruction.op and instruction.value in dtypes:
            dtype = dtypes[instruction.value]
            powers = instruction.op == "logaddexp" and not dtype.is_floating_point
            if powers or (dtype is torch.bool) != (instruction.op in ("any", "all")):
                yield instruction, f"{instruction.op} does not fold {short_name(dtype)}"


def _rule_accumulate(kernel: Kernel) -> Iterator[Fault]:
    """A fold over rows owns its output buffer, and keeps the positions it names apart."""
    writers: dict[str, int] = {}
    for _, instruction in _indexed(kernel):
        if not isinstance(instruction, Load | Gather):
            writers[instruction.buffer] = writers.get(instruction.buffer, 0) + 1
    for stage, instruction in _of_kind(kernel, Accumulate):
        if kernel.buffer(instruction.buffer).role is not Role.OUTPUT:
            yield instruction, f"{instruction.buffer} is no output: a fold over rows has no prior contents"
        if writers[instruction.buffer] > 1:
            yield instruction, f"{instruction.buffer} is written elsewhere too"
        axes = kernel.rows + (kernel.cols if stage.loop else ())
        fault = _collides(instruction.index, [axis for axis in axes if axis.name in instruction.index.axes])
        if fault:
            yield instruction, fault


def _rule_rows_left_out(kernel: Kernel) -> Iterator[Fault]:
    for instruction in kernel.instructions():
        if not isinstance(instruction, Accumulate) or not kernel.rows:
            continue
        if all(axis.name in instruction.index.axes for axis in kernel.rows):
            yield instruction, "the index leaves no row axis out: use reduce and store"


def _rule_scatters(kernel: Kernel) -> Iterator[Fault]:
    """What is scattered to has contents before, and no other instruction touches it."""
    touched = [instruction.buffer for _, instruction in _indexed(kernel)]
    for _, instruction in _of_kind(kernel, Scatter):
        if kernel.buffer(instruction.buffer).role is not Role.INOUT:
            yield instruction, f"{instruction.buffer} is not inout: where nothing is scattered it stays as it was"
        if touched.count(instruction.buffer) > 1:
            yield instruction, f"{instruction.buffer} is touched elsewhere too"


def _rule_contractions(kernel: Kernel) -> Iterator[Fault]:
    """One contraction at most, in the one loop of its kernel and without other folds; of floats this kernel reads. What
    is weighed may come of several, and a row stage may follow."""
    contractions = list(_of_kind(kernel, Contract, WeightedSum))
    if not contractions:
        return
    weighs = is_attention(kernel)
    stepped = kernel.stepped
    if len(contractions) > 1 and not weighs and stepped is None:
        yield contractions[1][1], "a kernel has one contraction at most"
    for stage, each in contractions:
        alone = stage.loop and stage is kernel.stages[0] and len(kernel.stages) <= (2 if weighs else 1)
        if not alone and stage is not stepped:
            yield each, "a contraction stands in a loop, the only one of its kernel"
        if each.dtype not in (torch.float32, torch.float64):
            yield each, f"products are summed in f32 or f64, not in {short_name(each.dtype)}"
    if weighs and any(stage.loop for stage in kernel.stages[1:]):
        yield kernel.stages[1], "after what is weighed comes a row stage at most"
    for _, instruction in _staged(kernel):
        if isinstance(instruction, Reduce | Scan | Accumulate | Scatter):
            yield instruction, "no other fold stands beside a contraction"
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    for each, factor in _factors(kernel):
        has_state = stepped is not None and factor.buffer in buffers and buffers[factor.buffer].role is Role.SCRATCH
        known = factor.buffer in buffers and not has_state
        fault = _factor_fault(buffers[factor.buffer], each.dtype) if known else None
        fault = fault or _quantized_fault(factor, buffers)
        if fault:
            yield each, fault


def _factor_fault(buffer: Buffer, dtype: torch.dtype) -> str | None:
    if buffer.role is not Role.INPUT:
        return f"{buffer.name} is written here: points that were not summed yet would see it"
    if buffer.dtype in SMALL_INTEGERS:
        return None
    if not buffer.dtype.is_floating_point or (buffer.dtype is torch.float64) != (dtype is torch.float64):
        return f"{buffer.name} is {short_name(buffer.dtype)}: it is not summed in {short_name(dtype)}"
    return None


_INTEGERS = {"i8": (torch.int8,), "u8": (torch.uint8,), "i4": SMALL_INTEGERS, "u4": SMALL_INTEGERS}  # dtypes of buffers


def _quantized_fault(factor: Factor, buffers: dict[str, Buffer]) -> str | None:
    """Scales are floats, and what is read is not written here."""
    quantized = factor.quantized
    if quantized is None or any(each.buffer not in buffers for each in factor.elements):
        return None
    if buffers[factor.buffer].dtype not in _INTEGERS[quantized.kind]:
        return f"{factor.buffer} is {short_name(buffers[factor.buffer].dtype)}, and has no {quantized.kind}"
    if factor.bounds:
        return "a quantized factor has no bounds"
    for each in quantized.elements:
        buffer = buffers[each.buffer]
        if buffer.role is not Role.INPUT:
            return f"{buffer.name} is written here: points that were not summed yet would see it"
        if not buffer.dtype.is_floating_point and (each is not quantized.zero or buffer.dtype is torch.bool):
            return f"{buffer.name} is {short_name(buffer.dtype)}: numbers are scaled by floats"
    return None


def _rule_steps(kernel: Kernel) -> Iterator[Fault]:
    """One stage has steps at most, a loop; what it reads beside inputs was stored before."""
    stored: set[str] = set()
    for stage in kernel.stages:
        if stage.steps is not None and (not stage.loop or stage is not kernel.stepped):
            yield stage, "one stage at most has steps, a loop"
        for instruction in stage.body:
            if stage.steps is None:
                stored |= {instruction.buffer} if isinstance(instruction, Store) else set()
                continue
            read = [each.buffer for each in instruction.factors] if isinstance(instruction, Contract) else []
            read += [instruction.buffer] if isinstance(instruction, Load) else []
            for name in read:
                if kernel.buffer(name).role is not Role.INPUT and name not in stored:
                    yield instruction, f"{name} is read before the steps stored to it"


def _rule_softmax(kernel: Kernel) -> Iterator[Fault]:
    """Of floats, in the loop of a kernel that weighs with it, and only one."""
    dtypes = value_dtypes(kernel)
    for number, (stage, each) in enumerate(_of_kind(kernel, Softmax)):
        if not is_attention(kernel) or not stage.loop or number:
            yield each, "one softmax at most stands in a kernel, in a loop that weighs with it"
        if dtypes.get(each.value, torch.float32) not in (torch.float32, torch.float64):
            yield each, f"softmax is not defined on {short_name(dtypes[each.value])}"


def _rule_weighted_sums(kernel: Kernel) -> Iterator[Fault]:
    """Each owns its output buffer, leaves rows or cols out, and keeps the positions it names apart."""
    writers = [i.buffer for _, i in _indexed(kernel) if not isinstance(i, Load | Gather)]
    sums = [each for each in kernel.instructions() if isinstance(each, WeightedSum)]
    writers += [each.buffer for each in sums]
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    dtypes = value_dtypes(kernel)
    for each in sums:
        buffer = buffers.get(each.buffer)
        if buffer is not None and buffer.role is not Role.OUTPUT:
            yield each, f"{each.buffer} is no output: a sum has no prior contents"
        if writers.count(each.buffer) > 1:
            yield each, f"{each.buffer} is written elsewhere too"
        have = dtypes.get(each.value, each.dtype)
        if have is not each.dtype:
            yield each, f"the weight {each.value} is {short_name(have)}, summed in {short_name(each.dtype)}"
        narrow = buffer is not None and each.dtype is torch.float32 and buffer.dtype in NARROW_FLOATS
        if buffer is not None and buffer.dtype is not each.dtype and not narrow:
            yield each, f"{each.buffer} is {short_name(buffer.dtype)}, the sum {short_name(each.dtype)}"
        if each.factor.bounds:
            yield each, "what is weighed has no bounds"
        if all(axis.name in each.index.axes for axis in kernel.rows + kernel.cols):
            yield each, "the index leaves no axis out: there is nothing to sum"
        named = [axis for axis in kernel.rows + kernel.cols if axis.name in each.index.axes]
        fault = _collides(each.index, [*named, *each.axes])
        if fault:
            yield each, fault


KERNEL_RULES: dict[str, Callable[[Kernel], Iterable[Fault]]] = {
    "axes": _rule_axes,
    "buffers": _rule_buffers,
    "buffers known": _rule_buffers_known,
    "defined once": _rule_defined_once,
    "visible": _rule_visible,
    "operands": _rule_operands,
    "narrow floats": _rule_narrow,
    "constants": _rule_constants,
    "index axes": _rule_index_axes,
    "bounds": _rule_bounds,
    "gathers": _rule_gathers,
    "scratch columns": _rule_scratch_columns,
    "inputs kept": _rule_inputs_kept,
    "outputs written": _rule_outputs_written,
    "read back": _rule_read_back,
    "stores": _rule_stores,
    "stores apart": _rule_store_apart,
    "reduce in loop": _rule_reduce_in_loop,
    "scans": _rule_scans,
    "fold dtypes": _rule_fold_dtypes,
    "accumulate": _rule_accumulate,
    "rows left out": _rule_rows_left_out,
    "scatters": _rule_scatters,
    "contractions": _rule_contractions,
    "steps": _rule_steps,
    "softmax": _rule_softmax,
    "weighted sums": _rule_weighted_sums,
}


def check_kernel(kernel: Kernel, after: str = "", *, scheduled: bool = False) -> None:
    """Raise `SpecError` on the first rule that `kernel` breaks; `after` names the pass that made it.

    A schedule may put axes in another order than indices name them, and drop the row a fold leaves out if it is one.
    """
    for name, rule in KERNEL_RULES.items():
        if scheduled and rule in (_rule_index_axes, _rule_rows_left_out):
            continue
        for place, fault in rule(kernel):
            raise _error(f"kernel {kernel.name}", name, fault, place, list(kernel_lines(kernel)), after)


def check_program(program: Program, after: str = "", *, known: Container[int] = ()) -> None:
    """Raise `SpecError` on the first rule that `program`, or one of its kernels, breaks.

    Kernels whose `id` is in `known` keep the rules.
    """
    for kernel in dict.fromkeys(each for launched in program.kernels for each in members(launched)):
        if id(kernel) not in known:
            check_kernel(kernel, after)
    for name, rule in PROGRAM_RULES.items():
        for place, fault in rule(program):
            raise _error(f"program {program.name}", name, fault, place, list(program_lines(program)), after)


def _error(what: str, rule: str, fault: str, place: object, lines: list[tuple[object, str]], after: str) -> SpecError:
    when = f" after {after}" if after else ""
    return SpecError("SM022", f'{what} breaks rule "{rule}"{when}: {fault}\n{excerpt(lines, place)}')
