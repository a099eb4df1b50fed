"""How big a fused kernel may grow, and what it cannot do. A target may bring its own; nothing here names one."""

from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    scratch_bytes: int = 64 * 1024  # what one row may keep aside between its passes
    row_elements: int = 8192  # where rows may be split freely (a fold of everything), the longest row
    whole_elements: int = 4096  # a fold of everything this small or smaller is one row
    values: int = 120  # operations in one kernel: register pressure and compile time grow with it
    keep_above: int = 8  # recomputing a value in a later pass may cost this much; beyond, it is staged
    small_ratio: int = 8  # a value this many times smaller than its reader costs its reader next to nothing
    spread_cost: int = 4  # a small value read by many points may be recomputed at each if it costs no more
    read_places: int = 4  # a value of full size that is not read where its reader is is recomputed at so many places
    unsupported: frozenset[str] = frozenset()  # kinds of operators (`LOWERINGS`) that its kernels cannot hold
    recomputes: bool = False  # computing what another kernel has computed takes less time than reading it
    host_reads_flags: bool = True  # the host reads what a kernel wrote without waiting for a device
    joins_flags: bool = False  # reading takes long: what several kernels found out of range is one flag
    passes_numbers: bool = False  # numbers that the host has are arguments of launches, on a chip
    library_products: bool = False  # in a file: where it runs, a library may be installed that multiplies
    overlaps_launches: bool = False  # a launch may begin before the one before it has ended, and wait for it
    group_buffers: int = 0  # of kernels that are launched as one, all together; 0: each is launched by itself


# Kinds of operators, as `ops.record` has them, that a target may leave to the library; the others every target has.
LOWERINGS = ("scan", "lookup", "scatter", "pieces")


DEFAULT_LIMITS = Limits()
