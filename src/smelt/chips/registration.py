"""`smelt.register_chip`: a chip becomes a device of PyTorch's and a target of the compiler.

    smelt.register_chip("sim", Sim())          or an entry point of the group `smelt.chips`, found by its name:
    smelt.register_chip("sim")

A process has one such device, under one name: PyTorch has room for one. Lazy tensors take it, too.
"""

import functools
import os
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import _tensor_str

from smelt import device as registry
from smelt import lazy
from smelt.base.errors import SmeltError
from smelt.base.options import Options
from smelt.chips.launcher import ChipLauncher
from smelt.chips.lazy_chip import LazyChip
from smelt.chips.owner import ChipOwner
from smelt.chips.runtime import ChipDevice
from smelt.codegen import targets as _targets  # noqa: F401  the host is a target, too
from smelt.codegen.chip_generator import generator_for
from smelt.codegen.targets import GROUP_BUFFERS, contraction_cycles_of, grid_contraction_cycles
from smelt.device import Target
from smelt.device.chip import Chip, offers, why_not_chip
from smelt.device.fusion_limits import Limits
from smelt.device.host_library import HOST
from smelt.dispatch.module import DeviceModule
from smelt.ir.graph import GraphCompiler, Traced
from smelt.ir.kernel_code import KernelCode
from smelt.lazy.enabling import follow
from smelt.lazy.owner import LazyOwner

ENTRY_POINT_GROUP = "smelt.chips"
EAGER = Options(library="none", products="own", fallback=False)
"""Options of single operators: what is not a kernel is the host's."""

_owners: dict[str, ChipOwner] = {}


class ChipModule(DeviceModule):
    """`torch.<name>`."""

    def __init__(self, device: ChipDevice) -> None:
        super().__init__(torch.default_generator)
        self._device = device

    def synchronize(self, device: Any = None) -> None:
        self._device.synchronize()

    def memory_allocated(self, device: Any = None) -> int:
        return self._device.bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._device.peak_bytes

    def empty_cache(self) -> None:
        self._device.release()


def register_chip(name: str, chip: Chip | None = None) -> torch.device:
    """Register `chip`, by default that of an installed package, as the PyTorch device `name`; returns the device."""
    if name in _owners:
        if chip is None or _owners[name].device.chip is chip:
            return torch.device(name, 0)
        raise SmeltError("SM070", f"the device {name!r} exists, and has another chip")
    _check_name(name)
    plugin = _installed(name) if chip is None else chip
    reason = why_not_chip(plugin)
    if reason is not None:
        raise SmeltError("SM070", f"the device {name!r} cannot be made: {reason}")
    device = ChipDevice(name, plugin)
    if not isinstance(device.target, Target):
        what = f"describe() returned a {type(device.target).__name__}, not a smelt.chips.Target"
        raise SmeltError("SM070", f"the device {name!r} cannot be made: {what}", hint="host_target makes one")
    owner = ChipOwner(device, _compiler())
    owner.register(ChipModule(device), HOST)
    _offer(name, device)
    _print_copies(name)
    _owners[name] = owner
    lazy.offer_chip(name, functools.partial(_recording, owner))
    os.register_at_fork(
        before=device.lock.acquire, after_in_parent=device.lock.release, after_in_child=device.begin_in_fork
    )
    return torch.device(name, 0)


def _recording(owner: ChipOwner, compiler: GraphCompiler) -> LazyOwner:
    """Have a chip's device record from now on."""
    owner.lazy = LazyChip(owner.device, compiler)
    follow(owner.lazy.owner)
    return owner.lazy.owner


def _print_copies(name: str) -> None:
    """Have PyTorch print copies on the host, as it does for other devices on which each operator is compiled."""
    text_of: Any = _tensor_str._tensor_str

    @functools.wraps(text_of)
    def text(tensor: torch.Tensor, indent: int) -> str:
        text_of_copy: str = text_of(tensor.cpu() if tensor.device.type == name else tensor, indent)
        return text_of_copy

    _tensor_str._tensor_str = text


def _check_name(name: str) -> None:
    if not name.isidentifier() or name in (HOST.type, "cuda", "meta", "privateuseone", "lazy"):
        raise SmeltError("SM070", f"a device cannot be called {name!r}", hint="choose a short name of letters")
    if name in registry.names():
        raise SmeltError("SM070", f"a device cannot be called {name!r}: that is a target of smelt's own")


def _installed(name: str) -> Any:
    offered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in offered:
        hint = f"installed packages offer {', '.join(sorted(offered)) or 'none'}"
        raise SmeltError("SM070", f"no installed package offers a chip {name!r}", hint=hint)
    return offered[name].load()()


def list_chips() -> list[str]:
    """The chips that are registered, and those that installed packages offer."""
    return sorted({*_owners, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def _compiler() -> GraphCompiler:
    def compile_graph(traced: Traced) -> Any:
        from smelt.pipeline.backends import compile_llvm

        return compile_llvm(traced, EAGER)

    return compile_graph


def _offer(name: str, device: ChipDevice) -> None:
    """As a target: code by the generator for its form, which stages choose for tensors that they see as the host's."""
    target = device.target
    grids = target.warp_size > 1

    def launcher(code: KernelCode, unaligned: Any) -> ChipLauncher:
        return ChipLauncher(device, code, unaligned)

    registry.register(
        name,
        lambda: target,
        generator=functools.cache(lambda: generator_for(target, device.compile)),
        launcher=launcher,
        limits=Limits(
            recomputes=grids, joins_flags=True, passes_numbers=grids, group_buffers=GROUP_BUFFERS if grids else 0
        ),
        devices=(HOST.type,),
        contraction_cycles=functools.partial(grid_contraction_cycles if grids else contraction_cycles_of, name=name),
        on_request=True,
    )
    registry.place(name, torch.device(name, 0), multiplies=offers(device.chip, "matmul"))


def owner_of(name: str) -> ChipOwner:
    """What answers for a registered chip."""
    if name not in _owners:
        raise SmeltError("SM070", f"no chip is registered as {name!r}", hint="smelt.register_chip does that")
    return _owners[name]


def forget() -> None:
    """Drop all that was compiled (for `smelt.reset`)."""
    for owner in _owners.values():
        owner.forget()
