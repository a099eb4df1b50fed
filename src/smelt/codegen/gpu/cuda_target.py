"""NVIDIA's GPUs as targets, by the name of their architecture, such as `sm_90`. Writing code does not need the GPU."""

import re

from smelt.base.errors import SmeltError
from smelt.device import Target

TRIPLE = "nvptx64-nvidia-cuda"
# What LLVM knows to write code for, each with the oldest PTX that has it, and clusters where it has those.
_PTX = {75: 63, 80: 70, 86: 71, 87: 74, 89: 78, 90: 80, 100: 86, 101: 86, 103: 88, 120: 87, 121: 88}

# Multiprocessors of the largest chips of a kind, and blocks of 256 threads that each runs: PyTorch draws by as many.
_BLOCKS = {75: 40 * 4, 80: 108 * 8, 90: 132 * 8, 100: 148 * 8}


def describe_cuda(architecture: str) -> Target:
    """The target called `architecture`."""
    match = re.fullmatch(r"sm_(\d+)a?", architecture)
    if match is None or int(match[1]) not in _PTX:
        known = ", ".join(f"sm_{number}" for number in _PTX)
        raise SmeltError("SM030", f"there is no GPU target {architecture!r}", hint=f"choose from {known}")
    number = int(match[1])
    return Target(
        name=architecture,
        triple=TRIPLE,
        cpu=architecture,
        features=f"+ptx{_PTX[number]}",
        vector_bits=32,
        vector_registers=255,
        has_fma=True,
        has_nan_minmax=number >= 80,
        transpose_tile_bytes=(0, 0),
        warp_size=32,
        access_lanes=16,
        has_lane_ids=False,
        has_bfloat=number >= 80,
        approximates=True,
        drawing_blocks=_BLOCKS.get(number, 0),
        multiplies_matrices=number >= 80,
        cluster_blocks=8 if number >= 90 else 1,
    )
