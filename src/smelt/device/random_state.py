"""Random-number state, asked of devices: the default generator of each, saved and put back.

    kept = save(("cpu", "cuda:0")); …; restore(kept)       as if nothing had been drawn on either in between

Devices go by their names, which can be written to disk with a compiled graph.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

from smelt.device.host_library import HOST, on_host

Saved = Sequence[tuple[torch.Generator, torch.Tensor]]

_HOST_NAME = str(HOST)


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that operators on a device draw from unless they are given another."""
    if on_host(device):
        return torch.default_generator
    generators: Sequence[torch.Generator] = getattr(torch, device.type).default_generators
    return generators[device.index or 0]


def save(devices: Iterable[str]) -> Saved:
    """The state of the default generators of devices.

    Calls of compiled graphs come here. For the host no device is made of the name and asked for its type: that takes as
    long as to read the state.
    """
    saved = []
    for name in devices:
        generator = torch.default_generator if name == _HOST_NAME else default_generator(torch.device(name))
        saved.append((generator, generator.get_state()))
    return saved


def restore(saved: Saved) -> None:
    """Put back what `save` saw."""
    for generator, state in saved:
        generator.set_state(state)


def all_devices() -> tuple[str, ...]:
    """Every device of this process that random numbers are drawn on."""
    names = [str(HOST)]
    for name in ("cuda", "xpu", "mps"):
        backend = getattr(torch, name, None)
        if backend is not None and getattr(backend, "is_initialized", backend.is_available)():
            names += [f"{name}:{index}" for index in range(len(getattr(backend, "default_generators", ())))]
    return tuple(names)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Whatever is drawn inside, on any device, has not been drawn afterwards."""
    saved = save(all_devices())
    try:
        yield
    finally:
        restore(saved)
