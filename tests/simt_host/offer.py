"""The target "simt-host": GPU schedules on the host's tensors, where a vector plays the role of a warp.

Importing this module offers it; the code generators are loaded when the first kernel is built.
"""

import functools
from typing import Any

from smelt import _native
from smelt.codegen.targets import GROUP_BUFFERS, Unaligned, grid_contraction_cycles, grid_launcher
from smelt.device import Target, register
from smelt.device.fusion_limits import Limits
from smelt.ir.kernel_code import KernelCode

SIMT_HOST = "simt-host"
WARP = 8  # lanes of a vector that are a warp: enough for every schedule, and soon compiled


def _describe() -> Target:
    from tests.simt_host.warps import describe_host_warps

    return describe_host_warps(SIMT_HOST, WARP)


def _generator() -> Any:
    from tests.simt_host.warps import HostGenerator

    return HostGenerator()


def _launcher(code: KernelCode, unaligned: Unaligned | None) -> _native.GridLauncher:
    return grid_launcher(_launcher, code, unaligned, warp=WARP)


register(
    SIMT_HOST,
    _describe,
    generator=_generator,
    launcher=_launcher,
    limits=Limits(recomputes=True, group_buffers=GROUP_BUFFERS),
    devices=("cpu",),
    contraction_cycles=functools.partial(grid_contraction_cycles, name=SIMT_HOST),
    on_request=True,
)
