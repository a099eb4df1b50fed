"""Random products run by every schedule that takes them, against the truth, in memory that ends where pages do."""

import ctypes
import math
import mmap
import random
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from smelt.codegen import CompiledKernel
from smelt.codegen.cpu.products import direct, dot, few_rows, streamed_blocks, tile_shape
from smelt.codegen.cpu.products.plan import SCHEDULES
from smelt.codegen.cpu.products.problem import problem_of, why_no_problem
from smelt.codegen.cpu.target import describe_host
from smelt.codegen.loops.runtime_sizes import as_integer
from smelt.ir.check_kernel import SMALL_INTEGERS, check_kernel, contraction_of
from smelt.ir.kernel import Kernel
from smelt.ir.substitute_sizes import resized
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import SMALLEST, ShapeEnv, Symbol
from smelt.symbolic.symsize import is_symsize
from tests.codegen.cpu.products.bounds import differences
from tests.codegen.cpu.products.generated import MOST_PRODUCTS, product_of
from tests.codegen.cpu.products.written import compiled_by
from tests.codegen.running import call

THREADS = (1, 2, 3, 4, 8)
TOGETHER = 40
OTHERS: tuple[dict[str, Any], ...] = (
    {"vector_bits": 256, "vector_registers": 16, "fma_by_lane": False},
    {"vector_bits": 512, "vector_registers": 32, "fma_by_lane": False},
    {"vector_bits": 128, "vector_registers": 32, "fma_by_lane": True},
    {"vector_bits": 128, "vector_registers": 16, "fma_by_lane": False},
)
# Most products are so small that one thread would compute them, in one block; not so in two of three batches.
_WORTH: dict[tuple[ModuleType, str], int] = {
    (tile_shape, "_UNIT_WORTH"): 64,
    (streamed_blocks, "_GRAIN"): 64,
    (direct, "_GRAIN"): 64,
}
_BLOCKS: dict[tuple[ModuleType, str], int] = {
    (tile_shape, "_BLOCK_DEPTH"): 40,
    (tile_shape, "_BLOCK_ROWS"): 16,
    (tile_shape, "_BLOCK_COLS"): 40,
    (dot, "_DEPTH"): 32,
    (dot, "_ROWS"): 8,
    (dot, "_COLS"): 12,
    (few_rows, "_DEPTH"): 5,
    (few_rows, "_REST_DEPTH"): 7,
    (few_rows, "_ROWS"): 8,
    (few_rows, "_ARRAY_BYTES"): 256,
    (few_rows, "_LEAST_COLS"): 8,
    (direct, "_IMAGE_BYTES"): 256,
}
LITTLE: tuple[dict[tuple[ModuleType, str], int], ...] = ({}, _WORTH, _WORTH | _BLOCKS)


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
        if whole or buffer.dtype in SMALL_INTEGERS:
            low, high = (-4, 5) if whole else (-128, 128)
            values = torch.randint(low, high, (buffer.size,), generator=made).double()
            values = values.abs() if buffer.dtype is torch.uint8 else values
        else:
            values = torch.randn(buffer.size, generator=made, dtype=torch.float64)
            values = values / math.sqrt(depth) if buffer.name == contraction.left.buffer else values
        found.append((values.abs() if positive else values).to(buffer.dtype))
    return found


def failures(seed: int) -> tuple[int, list[str]]:
    """How many schedules took a product, and what they did wrong."""
    try:
        taken = _batch(seed // TOGETHER)[seed % TOGETHER]
    except Exception:  # of whichever product it is: the others are compiled without it
        (taken,) = _compiled([seed], seed // TOGETHER)
    kernel = product_of(seed)
    return len(taken), [f"{name}: {each}" for name, code in taken.items() for each in _faults(kernel, code, (), seed)]


@lru_cache(maxsize=1)
def _batch(number: int) -> list[dict[str, CompiledKernel]]:
    """Some products that follow each other, in one module: by what they share they take a third of the time."""
    return _compiled(range(number * TOGETHER, (number + 1) * TOGETHER), number)


def _compiled(seeds: Sequence[int], batch: int) -> list[dict[str, CompiledKernel]]:
    kernels = [product_of(seed) for seed in seeds]
    for kernel in kernels:
        check_kernel(kernel)
    return _by_all_schedules(kernels, batch)


def _by_all_schedules(kernels: Sequence[Kernel], batch: int) -> list[dict[str, CompiledKernel]]:
    """By every schedule that takes them; for this machine or, every other batch, as if it had other registers: LLVM
    makes up the difference."""
    target = replace(describe_host(), **(OTHERS[batch // 2 % len(OTHERS)] if batch % 2 else {}))
    asked: list[tuple[Kernel, str]] = []
    with ExitStack() as stack:
        for (module, name), size in LITTLE[batch % 3].items():
            stack.enter_context(mock.patch.object(module, name, size))
        counts = []
        for kernel in kernels:
            schedules = SCHEDULES if why_no_problem(kernel) is None else ()
            names = [each.name for each in schedules if each.why_not(problem_of(kernel), target) is None]
            asked += [(kernel, name) for name in names]
            counts.append(names)
        compiled = iter(compiled_by([kernel for kernel, _ in asked], [name for _, name in asked], target))
    return [{name: next(compiled) for name in names} for names in counts]


# Sizes that are given at launch.


def failures_in_symbols(seed: int, *, alone: bool = False) -> tuple[int, list[str]]:
    """How many schedules took a product some of whose sizes vary, and what they did wrong at other sizes. `alone`: it
    is compiled without others."""
    batch = seed // TOGETHER
    try:
        made = _compiled_in_symbols([seed], batch) if alone else _batch_in_symbols(batch)
        shape_env, kernel, taken = made[0 if alone else seed % TOGETHER]
    except Exception:  # of whichever product it is
        ((shape_env, kernel, taken),) = _compiled_in_symbols([seed], batch)
    found = []
    for values in _other_sizes(shape_env, seed):
        here: Kernel = resized(kernel, lambda size: size.evaluate(values.__getitem__))  # noqa: B023
        told_sizes = ", ".join(f"{symbol.text}={value}" for symbol, value in values.items())
        for name, code in taken.items():
            bound = _bound(code, values)
            found += [f"{name} at {told_sizes}: {each}" for each in _faults(here, *bound, seed)]
    return len(taken), found


@lru_cache(maxsize=1)
def _batch_in_symbols(number: int) -> list[tuple[ShapeEnv, Kernel, dict[str, CompiledKernel]]]:
    return _compiled_in_symbols(range(number * TOGETHER, (number + 1) * TOGETHER), number)


def _compiled_in_symbols(seeds: Sequence[int], batch: int) -> list[tuple[ShapeEnv, Kernel, dict[str, CompiledKernel]]]:
    envs = [ShapeEnv() for _ in seeds]
    kernels = [product_of(seed, shape_env) for seed, shape_env in zip(seeds, envs, strict=True)]
    return list(zip(envs, kernels, _by_all_schedules(kernels, batch), strict=True))


def _other_sizes(shape_env: ShapeEnv, seed: int) -> list[dict[Symbol, int]]:
    """The example, and a few sizes for which all that was relied on holds."""
    chance = random.Random(seed)
    found = [{symbol: symbol.example for symbol in shape_env.symbols}]
    for _ in range(12 if shape_env.symbols else 0):
        spread = chance.choice((0.3, 0.8, 1.3, 2.0))
        values = {
            symbol: max(SMALLEST, int(symbol.example * spread) + chance.randrange(-2, 4))
            for symbol in shape_env.symbols
        }
        if math.prod(values.values()) <= MOST_PRODUCTS and all(g.holds(values.__getitem__) for g in shape_env.guards):
            found.append(values)
    return found[:4]


def _bound(code: CompiledKernel, values: dict[Symbol, int]) -> tuple[CompiledKernel, list[int]]:
    """The code as it is launched for sizes, and the numbers that it is given."""
    needed = code.per_thread_workspace
    needed = needed.evaluate(values.__getitem__) if is_symsize(needed) else needed  # type: ignore[attr-defined]
    given = [as_integer(size.evaluate(values.__getitem__)) for size in code.sizes]
    return replace(code, per_thread_workspace=needed), given


def _full_of_nan(size: int, *, at_start: bool) -> Tensor:
    """A workspace beside a guard, in which what nobody wrote shows where it is read."""
    return guarded(size, torch.uint8, at_start=at_start).fill_(0xFF)


def _faults(kernel: Kernel, compiled: CompiledKernel, sizes: Sequence[int], seed: int) -> list[str]:
    """With several numbers of threads, which are to give the same bits, beside pages that nobody may touch."""
    before = filled(kernel, seed)
    given = [torch.tensor(sizes, dtype=torch.int64)] if sizes else []
    runs = []
    for threads in THREADS:
        after = [guarded(len(each), each.dtype, at_start=threads > 1).copy_(each) for each in before]
        call(compiled, [*after, *given], threads, room=partial(_full_of_nan, at_start=threads > 1))
        runs.append(after)
    first, *others = (b"".join(each.view(torch.uint8).numpy().tobytes() for each in run) for run in runs)
    differ = [threads for threads, other in zip(THREADS[1:], others, strict=True) if other != first]
    wrong = [f"{threads} threads give other results than {THREADS[0]}" for threads in differ]
    return [*differences(kernel, before, runs[0]), *wrong]


def told(seed: int) -> str:
    """A script that runs a product."""
    text = format_kernel(product_of(seed))
    return (
        f"from tests.codegen.cpu.products.running import failures, failures_in_symbols\n\n"
        f'"""\n{text}\n"""\nprint(failures({seed}), failures_in_symbols({seed}))\n'
    )
