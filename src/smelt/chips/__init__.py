"""Chips: new devices, each a class of a few methods. A package that defines a chip imports from here.

    from smelt.chips import Chip, ChipLost, KernelModule, Launch, Target, host_target, register_chip
"""

from dataclasses import replace
from typing import Any

from smelt.chips.registration import list_chips, owner_of, register_chip
from smelt.chips.runtime import ChipDevice
from smelt.device import Chip, ChipLost, Grid, KernelModule, Launch, Target

__all__ = [
    "Chip",
    "ChipLost",
    "Grid",
    "KernelModule",
    "Launch",
    "Target",
    "device_named",
    "fallbacks",
    "host_target",
    "list_chips",
    "register_chip",
]


def host_target(name: str, **changes: Any) -> Target:
    """The `Target` of a chip called `name` that runs LLVM IR for this processor; `changes` replace fields of it."""
    from smelt.codegen.cpu.target import describe_host

    return replace(describe_host(), name=name, form="llvm", **changes)


def device_named(name: str) -> ChipDevice:
    """The memory in use on the chip `name`, and its number of allocations."""
    return owner_of(name).device


def fallbacks(name: str) -> dict[str, int]:
    """The operators that the host computed for the chip `name`, with their number of calls."""
    return dict(owner_of(name).host.fallbacks)
