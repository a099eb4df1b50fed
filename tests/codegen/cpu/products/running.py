"""Random products run by every schedule that takes them, against the truth, in memory that ends where pages do."""

import ctypes
import math
import mmap
import random
import weakref
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor

from smelt.base.options import Options
from smelt.codegen import CompiledKernel, build, compile_kernels
from smelt.codegen.cpu.products import plan as products
from smelt.codegen.cpu.target import describe_host
from smelt.ir.check_kernel import contraction_of
from smelt.ir.kernel import Kernel
from smelt.ir.text import format_kernel
from tests.codegen.cpu.products.bounds import differences
from tests.codegen.cpu.products.generated import product_of
from tests.codegen.running import call

THREADS = (1, 3)


def guarded(size: int, dtype: torch.dtype, *, at_start: bool) -> Tensor:
    """A tensor beside a page that nobody may touch: after its last element, or before its first."""
    page = mmap.PAGESIZE
    length = max(size * dtype.itemsize, 1)
    room = -(-length // page) * page
    memory = mmap.mmap(-1, room + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fence = address if at_start else address + room
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), page, 0)
    start = page if at_start else room - size * dtype.itemsize
    if not size:
        return torch.empty(0, dtype=dtype)
    found = torch.frombuffer(memory, dtype=dtype, count=size, offset=start)
    weakref.finalize(found, ctypes.CDLL(None).mprotect, ctypes.c_void_p(fence), page, 3)
    return found


def filled(kernel: Kernel, seed: int) -> list[Tensor]:
    """Tensors for a kernel: small whole numbers, of which sums are exact, or any, of which sums are about one."""
    chance, made = random.Random(seed), torch.Generator().manual_seed(seed)
    whole, positive = chance.random() < 0.5, chance.random() < 0.15
    contraction = contraction_of(kernel)
    assert contraction is not None
    depth = max(1, math.prod(axis.size for axis in contraction.axes))
    found = []
    for buffer in kernel.parameters:
        if whole:
            values = torch.randint(-4, 5, (buffer.size,), generator=made).double()
        else:
            values = torch.randn(buffer.size, generator=made, dtype=torch.float64)
            values = values / math.sqrt(depth) if buffer.name == contraction.left.buffer else values
        found.append((values.abs() if positive else values).to(buffer.dtype))
    return found


def failures(seed: int) -> tuple[int, list[str]]:
    """How many schedules took a product, and what they did wrong."""
    kernel, target = product_of(seed), describe_host()
    if products.why_not(kernel, target) is not None:
        return 0, []
    wrong: list[str] = []
    problem = products.problem_of(kernel)
    fitting = [each for each in products.SCHEDULES if each.why_not(problem, target) is None]
    for schedule in fitting:
        named = replace(kernel, name=f"{kernel.name}_{schedule.name}")
        build.forget()  # kernels of the same text are built once, by whichever schedule came first
        with mock.patch.object(products, "SCHEDULES", (schedule,)):
            compiled = compile_kernels([named], Options(check_specs=True))[named.name]
        wrong += [f"{schedule.name}: {each}" for each in _faults(named, compiled, seed)]
    return len(fitting), wrong


def _faults(kernel: Kernel, compiled: CompiledKernel, seed: int) -> list[str]:
    """With several numbers of threads, which are to give the same bits."""
    wrong: list[str] = []
    before = filled(kernel, seed)
    first: list[Tensor] = []
    for threads in THREADS:
        after = [guarded(len(each), each.dtype, at_start=(seed + threads) % 4 == 0).copy_(each) for each in before]
        call(compiled, after, threads)
        wrong += [f"{threads} threads: {fault}" for fault in differences(kernel, before, after)]
        first = first or after
        if not all(map(torch.equal, first, after)):
            wrong.append(f"{threads} threads give other results than {THREADS[0]}")
    return wrong


def told(seed: int) -> str:
    """A script that runs a product."""
    text = format_kernel(product_of(seed))
    return (
        f"from tests.codegen.cpu.products.running import failures\n\n"
        f'"""\n{text}\n"""\nprint(failures({seed}))\n'
    )
