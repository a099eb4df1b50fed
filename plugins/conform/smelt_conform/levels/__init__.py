"""All levels, in the order in which a new chip needs them."""

from smelt_conform.check import Check, Level
from smelt_conform.levels import (
    copies,
    elementwise,
    faults,
    gradients,
    indexing,
    memory,
    optimizers,
    pressure,
    products,
    queue,
    random_numbers,
    reductions,
    threads,
    training,
)

LEVELS: tuple[Level, ...] = (
    memory.LEVEL,
    copies.LEVEL,  # between allocations
    queue.LEVEL,  # uses copies
    elementwise.LEVEL,  # the first level with kernels
    reductions.LEVEL,
    indexing.LEVEL,
    products.LEVEL,
    gradients.LEVEL,  # of what the levels before compute
    optimizers.LEVEL,
    training.LEVEL,  # combines the levels before
    random_numbers.LEVEL,
    threads.LEVEL,
    faults.LEVEL,
    pressure.LEVEL,  # last: leaks of all levels show here
)

CHECKS: dict[str, Check] = {f"{level.name}.{check.name}": check for level in LEVELS for check in level.checks}
