"""Random attentions, compiled for this machine or as if it had other registers, in memory that ends where pages do."""

import math
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from smelt.codegen.build import CompiledKernel
from smelt.codegen.cpu.attention import blocks
from smelt.codegen.cpu.attention.plan import ATTENTION
from smelt.codegen.cpu.target import describe_host
from smelt.codegen.llvm.compile import load
from smelt.codegen.write_module import join
from smelt.device import Target
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.attention.written import F32, F64, Attention
from tests.codegen.cpu.products.running import OTHERS, _full_of_nan, guarded
from tests.codegen.running import call
from tests.kernel_reference import run_kernel

# Most are so small that there would be one block of each, and one thread.
_SMALL: dict[tuple[ModuleType, str], int] = {
    (blocks, "_SCORE_BYTES"): 2048,
    (blocks, "_KEY_BYTES"): 4096,
    (blocks, "_QUERY_PANELS"): 2,
    (blocks, "_LEAST_PANELS"): 1,
    (blocks, "_UNIT_WORTH"): 64,
    (blocks, "_GRADIENT_BYTES"): 2048,
}


def attention_of(seed: int) -> Attention:
    """Sizes that are odd as often as not."""
    chance = random.Random(seed)
    dtype = chance.choice((F32, F32, F32, F64, torch.bfloat16, torch.float16))
    wide = F64 if dtype is F64 else F32
    mask = chance.choice(("", "", "full", "keys", "heads"))
    return Attention(
        chance.choice((1, 1, 2)),
        chance.choice((1, 2, 3)),
        chance.choice((1, 1, 2)),
        chance.choice((1, 2, 5, 12, 13, 24, 37)),
        chance.choice((1, 2, 7, 8, 9, 31, 40, 65)),
        width := chance.choice((1, 3, 4, 8, 11, 16)),
        chance.choice((width, width, 1, 5, 8, 17)),
        dtype,
        chance.random() < 0.4,
        mask,
        chance.choice((wide, torch.bool, dtype)) if mask else wide,
        chance.random() < 0.7,
        chance.choice((0.125, 1.0, 3.0)),
        chance.random() < 0.6,
        {name: chance.choice((0, 0, 3)) for name in "qkv"},
    )


def compiled(
    kernels: Sequence[Kernel], target: Target | None = None, *, small: bool = False, only: Sequence[str] | None = None
) -> list[CompiledKernel]:
    """All in one module; with `only`, each by the schedule of that name."""
    names = only or [None] * len(kernels)
    target = target or describe_host()
    with ExitStack() as stack:
        for (module, name), size in _SMALL.items() if small else ():
            stack.enter_context(mock.patch.object(module, name, size))
        plans = [ATTENTION.plan(kernel, target, name) for kernel, name in zip(kernels, names, strict=True)]
        codes = [plan.emit(f"k{number}", target) for number, plan in enumerate(plans)]
    (built,) = load([join(codes)], target)
    return [
        CompiledKernel.of(kernel, f"k{number}", built, code)
        for number, (kernel, code) in enumerate(zip(kernels, codes, strict=True))
    ]


def targets() -> list[Target]:
    others: tuple[dict[str, Any], ...] = ({}, *OTHERS)
    return [replace(describe_host(), **other) for other in others]


def faults(attention: Attention, kernel: Kernel, code: CompiledKernel, given: Sequence[Tensor]) -> list[str]:
    """What it does wrong: other results than the reference, or with other numbers of threads."""
    check_kernel(kernel)
    want = [tensor.clone() for tensor in given]
    run_kernel(kernel, want)
    runs = []
    for threads in (1, 2, 3):
        got = [guarded(len(each), each.dtype, at_start=threads > 1).copy_(each) for each in given]
        call(code, got, threads, room=partial(_full_of_nan, at_start=threads > 1))
        runs.append(got)
    found = []
    names = [buffer.name for buffer in kernel.parameters]
    # Powers are wrong by what rounding leaves of the largest score: no more than a query's length times a key's.
    lengths = [attention.view(name, given[names.index(name)]).double().norm(dim=-1).max().item() for name in "qk"]
    largest = max(1.0, attention.scale * math.prod(lengths))
    for place, buffer in enumerate(kernel.parameters):
        rounding = torch.finfo(buffer.dtype).eps if buffer.dtype.is_floating_point else 0
        near = 4 * rounding + 8 * largest * torch.finfo(attention.wide).eps
        size = want[place].double().nan_to_num(posinf=0, neginf=0).abs().max().item()
        if not torch.allclose(runs[0][place], want[place], rtol=near, atol=near * max(1.0, size), equal_nan=True):
            found.append(f"{buffer.name} is wrong by {(runs[0][place].double() - want[place].double()).abs().max()}")
        if any(not torch.equal(_bits(other[place]), _bits(runs[0][place])) for other in runs[1:]):
            found.append(f"{buffer.name} differs by threads")
    return found


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
