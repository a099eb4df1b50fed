"""`Target`: what a chip says of itself, as plain data that every stage may read.

    Target("cpu", "aarch64-unknown-linux-gnu", vector_bits=128, has_fma=True, ...).lanes(torch.float32) == 4

Nothing above `codegen` names a chip: widths, parallel levels, address spaces and limits all come from here.
"""

from enum import Enum

import torch

from smelt.base.fast_dataclass import dataclass


class ParallelLevel(Enum):
    """A level of parallelism that rows may be spread over."""

    THREADS = "threads"  # workers that share memory, each running rows one after the other
    BLOCKS = "blocks"  # groups of lanes with memory of their own
    LANES = "lanes"  # elements of one vector, or threads of one block


@dataclass(frozen=True, slots=True)
class Target:
    """A chip to generate code for."""

    name: str
    triple: str
    cpu: str
    features: str  # in LLVM's form: "+neon,-sve"
    vector_bits: int
    vector_registers: int
    levels: tuple[ParallelLevel, ...]
    has_fma: bool
    fma_clobbers_addend: bool  # a fused multiply-add puts its result where the addend was
    prefetch_next_row: bool  # asking for memory before it is read pays where a loop leaves it idle
    prefetch_distance: int  # bytes ahead of where a loop that only reads asks for memory; 0 where that does not pay
    pairs_rows: bool  # two places of an array, far apart, are read faster side by side than one after the other
    cheap_interleave: bool  # two vectors lane by lane into one, at no more cost than a shift
    has_narrowing_add: bool  # one instruction adds and keeps the upper or lower half of each lane
    has_nan_minmax: bool  # one instruction for a minimum that keeps NaN
    transpose_tile_bytes: tuple[int, int]  # of tiles that transpose reads: along those reads, and along the others
    transpose_register_bits: int = 128  # registers in which they are turned
    nontemporal_min_bytes: int = 0  # bytes that whole lines are written of past the cache, from so many on; 0 for never
    hoist_loads_over_stores: bool = False  # a load waits for a store before it that only seems to be to the same place
    has_scalef: bool = False  # one instruction for x · 2^n, for whichever n, of a whole vector
    unroll_light: int = 4  # registers of one value that a loop computes side by side, where a point takes few of them
    tune_cpu: str = ""  # the processor, in LLVM's words, whose order of instructions serves; empty for `cpu` itself
    address_spaces: tuple[tuple[str, int], ...] = (("global", 0), ("scratch", 0))

    def lanes(self, dtype: torch.dtype) -> int:
        """How many elements of `dtype` one vector register holds."""
        return max(1, self.vector_bits // (8 * dtype.itemsize))

    def address_space(self, memory: str) -> int:
        """LLVM's number for `memory`: "global" or "scratch"."""
        return dict(self.address_spaces)[memory]
