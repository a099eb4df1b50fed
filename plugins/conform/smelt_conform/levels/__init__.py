"""The levels of the conformance kit, in the order in which a new chip meets them."""

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
    copies.LEVEL,  # by allocations
    queue.LEVEL,  # copies that are pending
    elementwise.LEVEL,  # from here on kernels
    reductions.LEVEL,
    indexing.LEVEL,
    products.LEVEL,
    gradients.LEVEL,  # kernels of the levels before, in the other direction
    optimizers.LEVEL,
    training.LEVEL,  # all of it together
    random_numbers.LEVEL,
    threads.LEVEL,
    faults.LEVEL,
    pressure.LEVEL,  # last: what a chip leaks shows here
)

CHECKS: dict[str, Check] = {f"{level.name}.{check.name}": check for level in LEVELS for check in level.checks}
