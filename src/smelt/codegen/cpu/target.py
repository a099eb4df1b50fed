"""Processors as targets: what all of one architecture have in common, and the host."""

from dataclasses import replace
from typing import Any

from smelt.codegen.llvm.compile import llvm as load_llvm
from smelt.device import Target

AARCH64 = Target(
    name="aarch64",
    triple="aarch64-unknown-linux-gnu",
    cpu="generic",
    features="+neon,+reserve-x18",  # macOS, Windows and Android use that register
    vector_bits=128,
    vector_registers=32,
    has_fma=True,
    fma_clobbers_addend=True,
    prefetch_next_row=True,
    prefetch_distance=512,
    pairs_rows=True,
    cheap_interleave=True,
    has_narrowing_add=True,
    has_nan_minmax=True,
    transpose_tile_bytes=(1024, 256),
    # Arm's cores look a hundred instructions ahead at most: what can run side by side has to stand side by side.
    unroll_light=8,
    fma_by_lane=True,
)


def x86(vector_bits: int, **own: Any) -> Target:
    """One with registers of so many bits. With AVX-512 the order for another maker's chip is the better one, by 2 to 5
    percent of gelu and tanh."""
    is_wide = vector_bits == 512
    common: dict[str, Any] = {
        "vector_registers": 32 if is_wide else 16,
        "prefetch_next_row": True,
        "hoist_loads_over_stores": True,
        "has_scalef": is_wide,
        "has_saturating_convert": False,
        "has_lane_lookup": is_wide,
        "transpose_register_bits": vector_bits,
        "nontemporal_min_bytes": 8 * 1024 * 1024,
        "tune_cpu": "znver4" if is_wide else "",
    }
    return Target(vector_bits=vector_bits, **common | own)


def describe_host() -> Target:
    """What LLVM knows of this machine, as a target."""
    llvm = load_llvm()
    features = dict(llvm.get_host_cpu_features())
    own = {
        "name": "cpu",
        "triple": llvm.get_process_triple(),
        "cpu": llvm.get_host_cpu_name(),
        "features": llvm.get_host_cpu_features().flatten(),
    }
    if own["triple"].startswith(("aarch64", "arm64")):
        return replace(AARCH64, **own, tune_cpu="generic")
    bits = 512 if features.get("avx512f") else 256 if features.get("avx2") or features.get("avx") else 128
    dots = "avx512vnni" if bits == 512 else "avxvnni"
    has = {"has_fma": "fma", "has_half": "f16c", "dots_bytes": dots}
    return x86(bits, **own, **{name: bool(features.get(each)) for name, each in has.items()})
