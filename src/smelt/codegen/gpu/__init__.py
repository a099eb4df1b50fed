"""GPU kernels: schedules over a few primitives, lowered to PTX, SPIR-V, or host code in which a warp is a vector."""
