"""What kernels take of a GPU, as its driver says it, and how many bytes steps move.

    usage_lines(kernel)   →   ["k0_amax_sub_0: 4096 blocks of 256 threads; 32 registers, 64 bytes of shared memory; 8
                                blocks on a multiprocessor, 100 % of its threads"]

A line for each grid that a launch runs. Where the GPU is not here, grids are all that is known; a kernel for a CPU has
none.
"""

from collections.abc import Iterable

from smelt import codegen
from smelt.base.errors import SmeltError
from smelt.ir.kernel import AnyKernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.program import Program, Step, reads, writes
from smelt.runtime.cuda.driver import CudaDevice, devices, why_not_device
from smelt.runtime.cuda.image import CudaCode, FunctionUsage
from smelt.symbolic.symsize import hint


def usage_lines(kernel: AnyKernel) -> list[str]:
    """What each grid of a kernel takes."""
    code = codegen.built_code(kernel)
    if code is None:
        return []
    device = _device_for(kernel.target) if isinstance(code.loaded, CudaCode) else None
    return [_line(phase, _usage(code.loaded, phase, device), device) for phase in code.phases]


def moved_bytes(program: Program, step: Step) -> int:
    """The size of all buffers that a step reads and writes; of what it looks up by index it may read less."""
    sizes = {buffer.name: hint(buffer.spec.nbytes) for buffer in program.buffers}
    return sum(sizes[name] for names in (reads(step), writes(step)) for name in _distinct(names) if name in sizes)


def _distinct(names: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(names)


def _device_for(target: str) -> CudaDevice | None:
    """A GPU of this machine that runs code for a target."""
    usable = [each for each in devices() if why_not_device(each) is None]
    alike = [each for each in usable if target.startswith(f"sm_{each.capability[0]}{each.capability[1]}")]
    return next(iter(alike or usable), None)


def _usage(code: object, phase: GridPhase, device: CudaDevice | None) -> FunctionUsage | None:
    if device is None or not isinstance(code, CudaCode):
        return None
    try:
        return code.usage(phase.symbol, device.number, phase.threads, phase.shared_bytes)
    except SmeltError:  # its driver does not take the code, which is told elsewhere
        return None


def _line(phase: GridPhase, usage: FunctionUsage | None, device: CudaDevice | None) -> str:
    blocks = hint(phase.blocks)
    text = f"{phase.symbol}: {blocks} block{'' if blocks == 1 else 's'} of {phase.threads} threads"
    if usage is None or device is None:
        return f"{text}; {phase.shared_bytes} bytes of shared memory" if phase.shared_bytes else text
    takes = [f"{usage.registers} registers"]
    shared = usage.shared_bytes + phase.shared_bytes
    takes += [f"{shared} bytes of shared memory"] if shared else []
    takes += [f"{usage.local_bytes} bytes spilled per thread"] if usage.local_bytes else []
    most = usage.blocks_per_multiprocessor
    busy = most * phase.threads / device.threads_per_multiprocessor
    resident = f"{most} block{'' if most == 1 else 's'} on a multiprocessor, {busy:.0%} of its threads"
    return f"{text}; {', '.join(takes)}; {resident.replace('%', ' %')}"
