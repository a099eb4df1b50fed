"""Rewrites kernels with scans for a GPU: the scanned axis becomes the only col axis.

    rows(i:5) cols(s:30, j:7)   v = scan sum x along s
    → rows(i:5, j:7) cols(s:30)

    rows() cols(s:1000000)      v = scan sum x along s, store y[s] = v
    → rows(part:264) cols(s:3840)    reduce sum x, then store total[part]
      rows() cols(part:264)          scan sum total along part, store before[part + 1]
      rows(part:264) cols(s:3840)    scan sum x along s, add before[part], store y[…]

Where a row is also reduced, or scanned along two axes, scans become separate kernels that leave their results in the
workspace. The order of additions never differs from run to run.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt.base.errors import SmeltError
from smelt.codegen.axes import dense_index, forward_scans, rewritten, scanned
from smelt.codegen.gpu.kernel_slices import (
    effects,
    exchanged,
    has,
    in_order,
    reads_updates,
    sliced,
    with_axes,
    with_buffers,
)
from smelt.codegen.gpu.phase_kernels import AxisParts, PhaseKernel
from smelt.codegen.loops.reductions import COMBINE, fold_dtype
from smelt.ir.check_kernel import operands, value_dtypes
from smelt.ir.kernel import (
    Access,
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Role,
    Scan,
    Stage,
    Store,
    neutral,
)
from smelt.symbolic.shapes import product

_CHUNK_STEP = 64  # parts of a scan begin at multiples of this: sixteen bytes are loaded at once there too


def has_logs(kernel: Kernel) -> bool:
    """Whether there are scans whose steps are long code."""
    return any(isinstance(i, Scan) and i.op == "logaddexp" for i in kernel.instructions())


def scan_kernels(kernel: Kernel) -> list[Kernel]:
    """The same, in which scans run forwards along the only axis of their kernel's cols."""
    if not has(kernel, Scan):
        return [kernel]
    kernel = forward_scans(kernel)
    alone = _others_as_rows(kernel)
    return [alone] if alone is not None else _staged(kernel)


def _others_as_rows(kernel: Kernel) -> Kernel | None:
    """With all axes but the one that is scanned as rows; None where there are several, or rows are whole."""
    along = scanned(kernel)
    if len(along) > 1:
        return None
    others = tuple(axis for axis in kernel.cols if axis.name not in along)
    if not others:
        return kernel
    if has(kernel, Reduce):
        return None
    if any(isinstance(i, Store) for stage in kernel.stages if not stage.loop for i in stage.body):
        return None
    moved = {axis.name for axis in others}
    scratch = {buffer.name for buffer in kernel.buffers if buffer.role is Role.SCRATCH}

    def change(instruction: Instruction) -> list[Instruction]:
        if not isinstance(instruction, Access) or instruction.buffer not in scratch:
            return [instruction]
        terms = tuple(term for term in instruction.index.terms if term[0] not in moved)
        return [replace(instruction, index=Index(terms, instruction.index.offset))]

    cols = [axis for axis in kernel.cols if axis.name in along]
    return with_axes(rewritten(kernel, change), (*kernel.rows, *others), cols)


def _staged(kernel: Kernel) -> list[Kernel]:
    """Each scan by itself, its result in the workspace; then the rest."""
    kernels: list[Kernel] = []
    axes = kernel.rows + kernel.cols
    index = dense_index(axes)
    while has(kernel, Scan):
        scan = next(i for i in kernel.instructions() if isinstance(i, Scan))
        dtype = value_dtypes(kernel)[scan.value]
        size = product(axis.size for axis in axes)
        staged = Buffer(f"{scan.out}.staged", dtype, size, Role.OUTPUT)
        kept = Store(staged.name, index, scan.out)
        name = f"{kernel.name}.{scan.out}"
        whole = sliced(exchanged(kernel, scan, [scan, kept], [staged]), [kept], name=name)
        if reads_updates(kernel, whole):
            raise SmeltError("SM030", f"what kernel {kernel.name} scans depends on what it has updated in place")
        alone = _others_as_rows(whole)
        if alone is None:
            source = Buffer(f"{scan.out}.source", dtype, size, Role.OUTPUT)
            left = Store(source.name, index, scan.value)
            kernels.append(sliced(exchanged(kernel, scan, [left], [source]), [left], name=f"{name}.source"))
            again = f"{scan.out}.value"
            body = (Load(again, source.name, index), replace(scan, value=again), kept)
            buffers = (replace(source, role=Role.INPUT), staged)
            alone = _others_as_rows(replace(kernel, name=name, buffers=buffers, stages=(Stage(True, body),)))
            assert alone is not None
        kernels.append(alone)
        back = Load(scan.out, staged.name, index)
        kernel = exchanged(kernel, scan, [back], [replace(staged, role=Role.INPUT)])
    rest = effects(kernel)
    return [*kernels, sliced(kernel, rest)] if rest else kernels


# Long scans, shared by many blocks.


def split_scan(kernel: Kernel, parts: int) -> list[PhaseKernel] | None:
    """Three kernels for one whose cols are a scan's axis: the total of each part, the scan of the totals, and the scan
    of each part from there on. None if that is impossible."""
    loops = [stage for stage in kernel.stages if stage.loop]
    scans = [i for i in kernel.instructions() if isinstance(i, Scan)]
    if len(loops) != 1 or kernel.stages[-1] is not loops[0] or any(each.op == "logaddexp" for each in scans):
        return None
    if has(kernel, Reduce):
        return None
    if any(isinstance(i, Store) for stage in kernel.stages if not stage.loop for i in stage.body):
        return None
    if any(buffer.role is Role.SCRATCH for buffer in kernel.buffers) or _depend(kernel, scans):
        return None
    (axis,) = kernel.cols
    parts_of = AxisParts.of(axis, parts, _CHUNK_STEP)
    dtypes = value_dtypes(kernel)
    kept = {scan.out: fold_dtype(scan.op, dtypes[scan.value]) for scan in scans}
    totals, befores = {}, {}
    for scan in scans:
        count, dtype = kernel.row_count, kept[scan.out]
        totals[scan.out] = Buffer(f"{scan.out}.total", dtype, count * parts_of.parts.size, Role.OUTPUT)
        befores[scan.out] = Buffer(f"{scan.out}.before", dtype, count * (parts_of.parts.size + 1), Role.OUTPUT)
    return [
        PhaseKernel(_totals(kernel, scans, parts_of, totals), (parts_of.bound,)),
        PhaseKernel(_befores(kernel, scans, parts_of.parts, totals, befores)),
        PhaseKernel(_scanned_parts(kernel, scans, parts_of, befores), (parts_of.bound,)),
    ]


def _depend(kernel: Kernel, scans: Sequence[Scan]) -> bool:
    """Whether the operand of a scan depends on another scan."""
    dependent: set[str] = set()
    for instruction in kernel.instructions():
        later = any(name in dependent for name in operands(instruction))
        if later and isinstance(instruction, Scan):
            return True
        if (later or instruction in scans) and not isinstance(instruction, Store):
            dependent.add(instruction.out)  # type: ignore[union-attr]
    return False


def _in_parts(kernel: Kernel, parts: AxisParts, stages: Sequence[Stage], extra: Sequence[Buffer], name: str) -> Kernel:
    kernel = replace(kernel, rows=(parts.parts, *kernel.rows), cols=(parts.inner,))
    order = kernel.rows + kernel.cols
    changed = [Stage(each.loop, tuple(parts.change(i, order) for i in each.body)) for each in stages]
    return with_buffers(kernel, changed, extra, name)


def _wide(kernel: Kernel, scan: Scan) -> tuple[list[Instruction], str]:
    """The scanned value, in the dtype of the running value."""
    dtype = value_dtypes(kernel)[scan.value]
    kept = fold_dtype(scan.op, dtype)
    if kept is dtype:
        return [], scan.value
    return [Cast(f"{scan.out}.wide", scan.value, kept)], f"{scan.out}.wide"


def _totals(kernel: Kernel, scans: Sequence[Scan], parts: AxisParts, totals: dict[str, Buffer]) -> Kernel:
    body: list[Instruction] = [i for stage in kernel.stages if stage.loop for i in stage.body]
    after: list[Instruction] = []
    rows = dense_index((parts.parts, *kernel.rows))
    for scan in scans:
        assert scan.op != "logaddexp"
        place = body.index(scan)
        cast, value = _wide(kernel, scan)
        body[place : place + 1] = [*cast, Reduce(f"{scan.out}.whole", scan.op, value)]
        after.append(Store(totals[scan.out].name, rows, f"{scan.out}.whole"))
    once = [stage for stage in kernel.stages if not stage.loop]
    whole = replace(kernel, stages=(*once, Stage(True, tuple(body)), Stage(False, tuple(after))))
    wanted = sliced(whole, after, list(totals.values()))
    return _in_parts(kernel, parts, wanted.stages, list(totals.values()), f"{kernel.name}.totals")


def _befores(
    kernel: Kernel, scans: Sequence[Scan], part: Axis, totals: dict[str, Buffer], befores: dict[str, Buffer]
) -> Kernel:
    body: list[Instruction] = []
    where = in_order(Load("", "", dense_index((part, *kernel.rows))), (*kernel.rows, part))
    assert isinstance(where, Load)
    source = where.index
    for scan in scans:
        value, out = f"{scan.out}.part", f"{scan.out}.parts"
        body += [Load(value, totals[scan.out].name, source), Scan(out, scan.op, value, part.name)]
        body.append(Store(befores[scan.out].name, Index(source.terms, kernel.row_count), out))
    buffers = (*(replace(each, role=Role.INPUT) for each in totals.values()), *befores.values())
    stages = (Stage(True, tuple(body)),)
    return replace(kernel, name=f"{kernel.name}.befores", cols=(part,), buffers=buffers, stages=stages)


def _scanned_parts(kernel: Kernel, scans: Sequence[Scan], parts: AxisParts, befores: dict[str, Buffer]) -> Kernel:
    room = dense_index((parts.parts, *kernel.rows))
    part, zero, first = "scan.part", "scan.zero", "scan.first"
    once: list[Instruction] = [Position(part, Index(((parts.parts.name, 1),))), Const(zero, 0, torch.int64)]
    once.append(Compute(first, "eq", (part, zero), torch.bool))
    body: list[Instruction] = [i for stage in kernel.stages if stage.loop for i in stage.body]
    dtypes = value_dtypes(kernel)
    for scan in scans:
        kept, dtype = befores[scan.out].dtype, dtypes[scan.value]
        nothing = -0.0 if scan.op == "sum" and kept.is_floating_point else neutral(scan.op, kept)
        before, read, none = f"{scan.out}.before", f"{scan.out}.read", f"{scan.out}.none"
        once += [Load(read, befores[scan.out].name, room), Const(none, nothing, kept)]
        once.append(Compute(before, "where", (first, none, read), kept))
        cast, value = _wide(kernel, scan)
        mine, joined = f"{scan.out}.mine", scan.out if kept is dtype else f"{scan.out}.joined"
        new = [*cast, replace(scan, out=mine, value=value), *_joined(scan, before, mine, joined, kept)]
        if kept is not dtype:
            new.append(Cast(scan.out, joined, dtype))
        place = body.index(scan)
        body[place : place + 1] = new
    earlier = [stage for stage in kernel.stages if not stage.loop]
    stages = [Stage(False, tuple(once)), *earlier, Stage(True, tuple(body))]
    return _in_parts(kernel, parts, stages, list(befores.values()), f"{kernel.name}.parts")


def _joined(scan: Scan, left: str, right: str, out: str, dtype: torch.dtype) -> list[Instruction]:
    """The reduction of `left` and the value after it; of equal floats the later one, and a NaN goes on."""
    if scan.op in ("max", "min") and dtype.is_floating_point:
        more, odd, keep = f"{out}.more", f"{out}.odd", f"{out}.keep"
        return [
            Compute(more, "gt" if scan.op == "max" else "lt", (left, right), torch.bool),
            Compute(odd, "isnan", (left,), torch.bool),
            Compute(keep, "or", (more, odd), torch.bool),
            Compute(out, "where", (keep, left, right), dtype),
        ]
    return [Compute(out, COMBINE[scan.op], (left, right), dtype)]
