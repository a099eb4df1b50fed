"""Layer 1: what a chip says of itself. Stages ask a target, never which chip it is."""

from smelt.device.protocol import Level, Target
from smelt.device.registry import find, names, register

__all__ = ["Level", "Target", "find", "names", "register"]
