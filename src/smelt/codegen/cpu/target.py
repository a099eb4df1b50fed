"""The host CPU as a target."""

from smelt.codegen.llvm.compile import llvm as load_llvm
from smelt.device import Target


def describe_host() -> Target:
    """What LLVM knows of this machine, as a target."""
    llvm = load_llvm()
    triple = llvm.get_process_triple()
    features = dict(llvm.get_host_cpu_features())
    arm = triple.startswith(("aarch64", "arm64"))
    if features.get("avx512f"):
        bits, registers = 512, 32
    elif features.get("avx2") or features.get("avx"):
        bits, registers = 256, 16
    else:
        bits, registers = 128, 32 if arm else 16
    return Target(
        name="cpu",
        triple=triple,
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        vector_bits=bits,
        vector_registers=registers,
        has_fma=arm or bool(features.get("fma")),
        fma_clobbers_addend=arm,
        prefetch_next_row=True,
        prefetch_distance=512 if arm else 0,
        pairs_rows=arm,
        cheap_interleave=arm,
        has_narrowing_add=arm,
        has_nan_minmax=arm,
        hoist_loads_over_stores=not arm,
        has_scalef=bool(features.get("avx512f")),
        transpose_tile_bytes=(1024 if arm else 512, 256),
        transpose_register_bits=128 if arm else bits,
        nontemporal_min_bytes=0 if arm else 8 * 1024 * 1024,
        # Arm's cores look a hundred instructions ahead at most: what can run side by side has to stand side by side.
        # With AVX-512 the order for another maker's chip is the better one, by 2 to 5 percent of gelu and tanh.
        unroll_light=8 if arm else 4,
        fma_by_lane=arm,
        has_half=arm or bool(features.get("f16c")),
        tune_cpu="generic" if arm else "znver4" if features.get("avx512f") else "",
    )
