"""Graphs on the tensors of a chip: compiled as for a host without a library, with kernels for the chip, and run there.

    graph on sim ── hosted ──► stages, target "sim" ──► program ── on_chip ──► kernels launched on sim

What has no kernel is called as an operator on the chip's tensors. Counts that the host keeps are the host's
(`host_part.py`). A graph that computes on other devices beyond that is run operator by operator.
"""

from dataclasses import replace

import torch

from smelt.autograd.joint.trace_joint import TraceSource, replaying
from smelt.base import events
from smelt.base.errors import SmeltError
from smelt.base.options import KERNELS_FIRST, Options
from smelt.device import chip_on, device_of, multiplies
from smelt.device.host_library import HOST
from smelt.ir.graph import Traced, returning_tuple
from smelt.pipeline.compile import Compilation
from smelt.pipeline.host_part import HostPart, divided, run_divided
from smelt.pipeline.parts import CompiledParts
from smelt.pipeline.placement import devices_of, hosted, moved, names_devices, why_not_hosted
from smelt.pipeline.sizes.open_graph import is_sized
from smelt.runtime.autograd.differentiable import Flat

_NOT_REPLAYED = "a graph with dynamic sizes that makes tensors on a chip cannot be recomputed"


def chip_of(traced: Traced) -> str | None:
    """The chip that a graph's tensors are on; None if they are on none."""
    return next((name for device in devices_of(traced) if (name := chip_on(device.type)) is not None), None)


def compile_for_chip(traced: Traced, options: Options, name: str) -> Flat:
    """A graph whose tensors are on the chip `name`."""
    device = device_of(name)
    assert device is not None
    reason = why_not_hosted(traced, device)
    if reason is not None:
        parts = divided(traced)
        if isinstance(parts, HostPart) and why_not_hosted(parts.chip, device) is None:
            return run_divided(traced, parts, compile_for_chip(parts.chip, options, name))
        if not options.fallback:
            raise SmeltError("SM020", f"a graph cannot be compiled for {name}: {reason}")
        events.fell_back("a graph", reason)
        return returning_tuple(traced.plainly())
    library = options.library if options.library == "none" else KERNELS_FIRST
    products = "library" if library == KERNELS_FIRST and multiplies(name) else "own"
    options = replace(options, target=name, library=library, products=products, tune=False)
    return Compilation(options, join=_Joining(traced, device)).compile(hosted(traced, device))


class _Joining:
    """Joins parts to callers that have tensors on a chip."""

    def __init__(self, traced: Traced, device: torch.device) -> None:
        self._traced, self._device = traced, device

    def __call__(self, parts: CompiledParts) -> Flat:
        if parts.plan is None:
            return parts.joined()
        plan = moved(parts.plan, HOST, self._device)
        parts = replace(parts, plan=plan)
        if not names_devices(self._traced):
            return parts.joined()
        if is_sized(self._traced):
            return replace(parts, eager=None, replay=_NOT_REPLAYED).joined()
        source = TraceSource.of_graph(self._traced)
        replay = parts.replay if isinstance(parts.replay, str) else replaying(source, plan)
        return replace(parts, eager=source.eager(), replay=replay).joined()
