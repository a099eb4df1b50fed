"""Chooses the target of a program's kernels: by the device they compute on, or by the option `target`.

    TargetChoice("sm_90").name_of(cuda:0) == "sm_90" · TargetChoice("sm_90").name_of(cpu) == "cpu"

Each device of a program has its own target and limits. A kernel computes on one device. Whatever reads from another
device is a library call, except for host scalars, which a kernel gets at launch.
"""

from dataclasses import field

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.device import contraction_cycles, limits_of, target_of
from smelt.device.fusion_limits import DEFAULT_LIMITS, Limits
from smelt.ir.kernel import Kernel
from smelt.ops.record import View
from smelt.ops.registry import only_result, record_of, why_not_lower


@dataclass(slots=True)
class TargetChoice:
    """The targets of a program, by device."""

    wanted: str = ""  # what the option `target` says
    limits: Limits | None = None  # of every kernel, in place of the targets' own
    for_files: bool = False  # the program calls no library, and goes into a file
    _known: dict[torch.device, Limits] = field(default_factory=dict)

    def name_of(self, device: torch.device) -> str | None:
        """The target of kernels on a device, by name."""
        return target_of(device, self.wanted)

    def limits_of(self, device: torch.device) -> Limits:
        """How big kernels on a device may grow."""
        if self.limits is not None:
            return self.limits
        known = self._known.get(device)
        if known is None:
            name = self.name_of(device)
            known = self._known[device] = DEFAULT_LIMITS if name is None else limits_of(name)
        return known

    def limits_for(self, target: str) -> Limits:
        """How big kernels for a target may grow."""
        return limits_of(target) if self.limits is None else self.limits

    def may_multiply_by_library(self, device: torch.device) -> bool:
        """Whether a library may compute products in place of kernels, where one is installed when a file is run."""
        return self.for_files and self.limits_of(device).library_products

    def contraction_cycles(self, device: torch.device, kernel: Kernel) -> float | str:
        """About how many cycles of a thread a kernel with a contraction takes, or why there is no code for it."""
        name = self.name_of(device)
        return f"no kernels are made for {device}" if name is None else contraction_cycles(name, kernel)

    def why_not_lower(self, node: fx.Node) -> str | None:
        """Why a call stays a library call on the target of its device, or None."""
        reason, lowering = why_not_lower(node), record_of(node.target).lowering
        result = None if reason is not None or isinstance(lowering, View) else only_result(node)
        if result is None:
            return reason
        kind = type(lowering).__name__.lower()
        if kind not in self.limits_of(result.device).unsupported:
            return None
        return f"is a {kind}, which kernels for {self.name_of(result.device)} cannot hold"
