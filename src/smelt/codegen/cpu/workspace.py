"""The memory of a part of a kernel: the kernel's buffers, and private arrays side by side in its workspace.

    scratch e: f32[1024], accumulate y: f32[10]   →   e at 0, y's sums at 4608, 5184 bytes for each thread
"""

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu import online_softmax, row_accumulators, scans, scatters
from smelt.codegen.cpu.schedule import SchedulePlan
from smelt.codegen.loops.scalars import memory_kind
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import Role, Scatter
from smelt.symbolic.shapes import Size

_ALIGN = 64
_APART = 512  # bytes between private arrays: loads that lie 4 KiB behind a store, or 8, may wait for it


def aligned(size: Size) -> Size:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


@dataclass(slots=True)
class WorkspaceLayout:
    """Arrays a part touches: the kind each holds, and for private ones (scratch, accumulators) a byte offset."""

    kinds: dict[str, str]
    offsets: dict[str, Size]
    size: Size

    @classmethod
    def of(cls, plan: SchedulePlan) -> "WorkspaceLayout":
        kinds = {buffer.name: memory_kind(buffer.dtype) for buffer in plan.kernel.buffers}
        private = [(b.name, b.dtype, b.size) for b in plan.kernel.buffers if b.role is Role.SCRATCH]
        for fold in plan.accumulators:
            private += [(name, dtype, row_accumulators.padded(fold)) for name, dtype in fold.arrays]
            kinds |= {name: memory_kind(dtype) for name, dtype in fold.arrays}
        dtypes = value_dtypes(plan.kernel)
        for scan in scans.scans(plan.kernel):
            if scan.axis == plan.kernel.cols[-1].name:
                continue  # carried from vector to vector
            state = scans.State.of(scan, dtypes[scan.value], plan.kernel.cols)
            private.append((state.name, state.dtype, state.size))
            kinds[state.name] = memory_kind(state.dtype)
        if plan.online is not None and plan.online.third is not None:
            count = plan.width // online_softmax.block_of(plan.lanes) + 2  # one begun, and the last vector
            private.append((online_softmax.REFERENCES, torch.float32, count))
            kinds[online_softmax.REFERENCES] = memory_kind(torch.float32)
        for put in [i for i in plan.kernel.instructions() if isinstance(i, Scatter)]:
            private.append((scatters.nowhere(put.buffer), plan.kernel.buffer(put.buffer).dtype, plan.lanes))
        offsets: dict[str, Size] = {}
        size: Size = 0
        for name, dtype, count in private:
            offsets[name] = size
            size += aligned(count * dtype.itemsize) + _APART
        return cls(kinds, offsets, size)
