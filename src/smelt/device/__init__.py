"""What a chip says of itself. Stages ask a target, never which chip it is."""

from smelt.device.registry import find, names, register
from smelt.device.target import ParallelLevel, Target

__all__ = ["ParallelLevel", "Target", "find", "names", "register"]
