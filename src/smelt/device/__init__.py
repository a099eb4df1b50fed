"""What a chip says of itself. Stages ask a target, never which chip it is."""

from smelt.device.chip import Chip, ChipLost, Grid, KernelModule, Launch
from smelt.device.registry import (
    check_launched,
    check_wanted,
    choose_for,
    contraction_cycles,
    devices,
    find,
    generator_of,
    launcher_of,
    limits_of,
    names,
    register,
    target_of,
    withdraw,
)
from smelt.device.target import Target

__all__ = [
    "Chip",
    "ChipLost",
    "Grid",
    "KernelModule",
    "Launch",
    "Target",
    "check_launched",
    "check_wanted",
    "choose_for",
    "contraction_cycles",
    "devices",
    "find",
    "generator_of",
    "launcher_of",
    "limits_of",
    "names",
    "register",
    "target_of",
    "withdraw",
]
