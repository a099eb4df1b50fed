"""What a chip says of itself. Stages ask a target, never which chip it is."""

from smelt.device.chip import Chip, ChipLost, Grid, KernelModule, Launch
from smelt.device.registry import (
    check_launched,
    check_wanted,
    chip_on,
    choose_for,
    contraction_cycles,
    device_of,
    devices,
    find,
    generator_of,
    has_chips,
    launcher_of,
    limits_of,
    names,
    place,
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
    "chip_on",
    "choose_for",
    "contraction_cycles",
    "device_of",
    "devices",
    "find",
    "generator_of",
    "has_chips",
    "launcher_of",
    "limits_of",
    "names",
    "place",
    "register",
    "target_of",
    "withdraw",
]
