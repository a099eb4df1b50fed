"""`Target`: what a chip says of itself, as plain data that every stage may read.

    Target("cpu", "aarch64-unknown-linux-gnu", vector_bits=128, has_fma=True, ...)

Nothing above a target's own part of `codegen` names a chip: what a kernel may grow to comes from `fusion_limits`, how
it becomes code from the target's generator.
"""

from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A chip to generate code for."""

    name: str
    triple: str
    cpu: str
    features: str  # in LLVM's form: "+neon,-sve"
    vector_bits: int
    vector_registers: int
    has_fma: bool
    fma_clobbers_addend: bool = False  # a fused multiply-add puts its result where the addend was
    prefetch_next_row: bool = False  # prefetching the next row pays where a loop leaves memory idle
    prefetch_distance: int = 0  # bytes between what a loop reads and what it prefetches; 0 where that does not pay
    pairs_rows: bool = False  # two places of an array, far apart, are read faster side by side than one after the other
    cheap_interleave: bool = False  # two vectors lane by lane into one, at no more cost than a shift
    has_narrowing_add: bool = False  # one instruction adds and keeps the upper or lower half of each lane
    has_nan_minmax: bool = False  # one instruction for a minimum that keeps NaN
    transpose_tile_bytes: tuple[int, int] = (512, 256)  # of tiles that transpose reads: along those, and across
    transpose_register_bits: int = 128  # registers in which they are transposed
    nontemporal_min_bytes: int = 0  # bytes of a result from which non-temporal stores pay; 0 for never
    hoist_loads_over_stores: bool = False  # a load waits for a store before it that only seems to be to the same place
    has_scalef: bool = False  # one instruction for x · 2^n, for whichever n, of a whole vector
    has_lane_lookup: bool = False  # one instruction picks lanes of 16 floats by the lowest bits of other lanes
    has_saturating_convert: bool = True  # a vector of floats becomes integers in order, also where it is out of range
    dots_bytes: bool = False  # one instruction adds 4 products of unsigned by signed bytes to each lane of 32 bits
    unroll_light: int = 4  # registers of one value that a loop computes side by side, where a point takes few of them
    tune_cpu: str = ""  # the processor, in LLVM's words, whose order of instructions serves; empty for `cpu` itself
    fma_by_lane: bool = False  # a multiply-add takes one lane of a register for all lanes of a factor
    warp_size: int = 1  # threads of a GPU that run in step
    access_lanes: int = 4  # elements that a thread of a GPU loads or stores at once, at most
    has_lane_ids: bool = True  # threads of a GPU know their warp and lane; else both follow from their number
    has_bfloat: bool = False  # one instruction rounds a float32 to bfloat16
    approximates: bool = False  # one instruction each for 2^x and 1 / x of a float32, two units off at most
    drawing_blocks: int = 0  # blocks of 256 threads that a GPU of this kind runs at the same time; 0: not known
    cluster_blocks: int = 1  # blocks of a GPU that run at the same time and read each other's shared memory, at most
    multiplies_matrices: bool = False  # a warp of 32 multiplies matrices of float16 or bfloat16
    has_half: bool = True  # one instruction converts float16 to float32, or back
    pointer_bytes: int = 8  # of an address in memory
    abi: str = ""  # how functions are called, in LLVM's words; empty where the triple says it
    required_features: tuple[str, ...] = ()  # what a processor must have to run the code, beyond its architecture
    form: str = ""  # of the kernels that a `Chip` compiles: "llvm" or "spirv"; empty for what is no chip
    dtypes: tuple[str, ...] = ()  # that a chip computes with, as "float32"; empty: all
    memory_bytes: int = 0  # of a chip, in all; 0: not known
