"""GPU kernels: schedules over a few primitives, which become PTX, or host code in which a warp is a vector."""
