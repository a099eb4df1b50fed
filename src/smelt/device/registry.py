"""Where targets are found: by name, and by the device that a tensor is on.

    register("cpu", describe_host, generator=…, launcher=…, devices=("cpu",))      once
    target_of(tensor.device) == "cpu" · find("cpu").vector_bits · limits_of("cpu")  anywhere
    target_of(tensor.device, "sm_90")    the target that the option `target` asks for, where it is for that device

Describing a chip may mean asking LLVM or a driver, so that is done when it is first asked for; the rest of an offer is
there at once. What makes code for a target (`codegen.generator.Generator`) is loaded when the first kernel is built.
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt import _native
from smelt.base import locks
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.device.fusion_limits import DEFAULT_LIMITS, LOWERINGS, Limits
from smelt.device.target import Target


@dataclass(frozen=True, slots=True)
class TargetOffer:
    """A target that may be asked for, before anybody does."""

    describe: Callable[[], Target]
    generator: Callable[[], Any] | None  # what schedules, emits and loads its kernels
    # A `KernelCode`, and what makes that of the same kernel for buffers at any address → what the runner calls.
    launcher: Callable[[Any, Callable[[], Any]], Any] | None
    limits: Limits
    devices: tuple[str, ...]  # the types of devices whose tensors its kernels work on
    # A kernel with a contraction → about how many cycles of a thread it takes, or why there is no code for it.
    contraction_cycles: Callable[[Any], float | str] | None = None


_offers: dict[str, TargetOffer] = {}
_made: dict[str, Target] = {}
_by_device: dict[str, str | None] = {}  # type of a device → the target whose kernels run on its tensors
_choices: dict[str, Callable[[], str | None]] = {}  # type of a device → what knows its target, asked once
_placed: dict[str, torch.device] = {}  # chips: name of the target → where its tensors are
_multiplying: set[str] = set()  # chips with matrix products of their own
_lock = locks.lock()


def register(
    name: str,
    describe: Callable[[], Target],
    *,
    generator: Callable[[], Any] | None = None,
    launcher: Callable[[Any, Callable[[], Any]], Any] | None = None,
    limits: Limits | None = None,
    devices: tuple[str, ...] = (),
    contraction_cycles: Callable[[Any], float | str] | None = None,
    on_request: bool = False,
) -> None:
    """Offer a target under `name`, for tensors on `devices`: for all of them from now on, or `on_request`, where the
    option `target` asks for it. A later offer replaces an earlier one, but for what it leaves out."""
    with _native.Held(_lock):
        known = _offers.get(name)
        if known is not None:
            generator, launcher = generator or known.generator, launcher or known.launcher
            limits, devices = limits or known.limits, devices or known.devices
            contraction_cycles = contraction_cycles or known.contraction_cycles
        _check_limits(limits or DEFAULT_LIMITS)
        limits = limits or DEFAULT_LIMITS
        _offers[name] = TargetOffer(describe, generator, launcher, limits, devices, contraction_cycles)
        if not on_request:
            _by_device.update(dict.fromkeys(devices, name))
        _made.pop(name, None)


def place(name: str, device: torch.device, *, multiplies: bool = False) -> None:
    """Kernels for a target run on tensors of a chip's device. Stages see these as the host's: what is decided for the
    host without its library is decided for chips, and results are laid out and rounded as PyTorch's on the host.
    `multiplies`: the chip has matrix products of its own, which operators on its tensors call."""
    with _native.Held(_lock):
        _placed[name] = device
        (_multiplying.add if multiplies else _multiplying.discard)(name)


def device_of(name: str) -> torch.device | None:
    """The device of the chip that a target is; None for what is no chip."""
    return _placed.get(name)


def multiplies(name: str) -> bool:
    """Whether the chip that a target is has matrix products of its own."""
    return name in _multiplying


def has_chips() -> bool:
    return bool(_placed)


def chip_on(device_type: str) -> str | None:
    """The target of the chip whose tensors are on such devices; None if there is none."""
    return next((name for name, device in _placed.items() if device.type == device_type), None)


def withdraw(name: str) -> None:
    """Take an offer back; devices that it was for have no target until another one is offered for them."""
    with _native.Held(_lock):
        _offers.pop(name, None)
        _made.pop(name, None)
        _placed.pop(name, None)
        for device in [device for device, target in _by_device.items() if target == name]:
            del _by_device[device]


def _check_limits(limits: Limits) -> None:
    unknown = limits.unsupported - set(LOWERINGS)
    if unknown:
        raise SmeltError("SM030", f"unknown kinds of operators: {', '.join(sorted(unknown))}")


def _offer(name: str) -> TargetOffer:
    if name not in _offers:
        raise SmeltError("SM030", f"there is no target {name!r}", hint="choose from " + ", ".join(_offers))
    return _offers[name]


def find(name: str) -> Target:
    """The target called `name`, described on first use."""
    with _native.Held(_lock):
        if name not in _made:
            _made[name] = _offer(name).describe()
        return _made[name]


def target_of(device: torch.device, wanted: str = "") -> str | None:
    """The target whose kernels work on tensors of a device, by name; None if there is none. `wanted` is taken where it
    is for such devices. Here alone a device becomes a target."""
    if wanted and device.type in _offer(wanted).devices:
        return wanted
    if device.type in _choices and device.type not in _by_device:
        target = _choices[device.type]()
        with _native.Held(_lock):
            _by_device.setdefault(device.type, target)
    return _by_device.get(device.type)


def choose_for(device_type: str, choose: Callable[[], str | None]) -> None:
    """Have `choose` say which target kernels on such devices are for, when the first are to be made; None: for none."""
    with _native.Held(_lock):
        _choices[device_type] = choose


def check_wanted(name: str) -> None:
    """Raise if no target has the name that the option `target` gives."""
    if name and name not in _offers:
        choices = ", ".join(sorted(_offers))
        raise SmeltError("SM003", f"unknown target {name!r}", hint=f"choose from {choices}")


def check_launched(name: str) -> None:
    """Raise if nothing in this process runs code for the target that the option `target` names."""
    if name and _offer(name).launcher is None:
        choices = ", ".join(sorted(each for each, offer in _offers.items() if offer.launcher is not None))
        hint = f"smelt.export makes code for it; to run here, choose from {choices}"
        raise SmeltError("SM003", f"code for the target {name!r} does not run here", hint=hint)


def devices() -> dict[str, str]:
    """The types of devices that kernels are made for, each with its target. One that is to be chosen yet is chosen now
    where this process computes on such devices: what is made for one kind of chip must not be taken for another's."""
    for kind in [kind for kind in _choices if kind not in _by_device]:
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available() and getattr(backend, "is_initialized", lambda: True)():
            target_of(torch.device(kind))
    return {device: name for device, name in _by_device.items() if name is not None}


def limits_of(name: str) -> Limits:
    """How big kernels for a target may grow."""
    return _offer(name).limits


def generator_of(name: str) -> Any:
    """What makes code for a target: a `codegen.generator.Generator`."""
    generator = _offer(name).generator
    if generator is None:
        raise SmeltError("SM030", f"nothing makes code for the target {name!r}")
    return generator()


def holds_contractions(name: str) -> bool:
    """Whether kernels for a target can multiply matrices by tiles."""
    return _offer(name).contraction_cycles is not None


def contraction_cycles(name: str, kernel: Any) -> float | str:
    """About how many cycles of a thread a kernel with a contraction takes, or why there is no code for it."""
    ask = _offer(name).contraction_cycles
    return f"kernels for {name} cannot hold contractions" if ask is None else ask(kernel)


def launcher_of(name: str) -> Callable[[Any, Callable[[], Any]], Any]:
    """What makes a target's machine code something the runner calls."""
    launcher = _offer(name).launcher
    if launcher is None:
        raise SmeltError("SM030", f"nothing launches code for the target {name!r}")
    return launcher


def names() -> tuple[str, ...]:
    """The targets on offer."""
    return tuple(_offers)
