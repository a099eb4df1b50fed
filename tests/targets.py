"""Where the tests run, if not on the host as it is: on a GPU, or by GPU schedules on the host.

    pytest --device cuda tests/ops        tensors that tests make without saying where are on the GPU
    pytest --target simt-host tests/ops   kernels are those of a GPU, run on the host, where a warp is a vector

Tests that need to know ask here: `device_type()` for `torch.autocast`, `seeded(7)` for a generator that draws there,
`random_states()` for all there is to compare or put back. Where it matters that a program moves its model and leaves
the default device alone, as most do, tests run under `none_by_default()` and make tensors `there()`.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

HOST = "cpu"
_FOR_TENSORS = 0.8
"""The part of a GPU's memory that processes share for their tensors: each has a context and libraries besides."""

chosen: tuple[str, str] = (HOST, HOST)
"""The device and the target of this process."""


def use(device: str | None, target: str | None, processes: int = 1) -> None:
    """Run what follows there, beside so many other processes. Nothing is imported where both are as ever."""
    global chosen
    chosen = (device or HOST, target or HOST)
    if target is not None and target != HOST:
        _make_default(target)
    if device is None or device == HOST:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what PyTorch asks for where tests want determinism
    share(device, processes)
    import torch

    torch.set_default_device(device)
    # Tests compare bits with eager's, whose convolutions may else differ from themselves.
    torch.backends.cudnn.deterministic = True


def share(device: str, processes: int) -> None:
    """Take no more of a GPU's memory than this process's part of it."""
    if not device.startswith("cuda") or processes == 1:
        return
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import torch

    torch.cuda.set_per_process_memory_fraction(_FOR_TENSORS / processes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """For campaigns: the same two options that pytest has here."""
    parser.add_argument("--device", default=HOST, help="where tensors are: cuda")
    parser.add_argument("--target", default=HOST, help="what kernels on the host are made for: simt-host")


def device_type() -> str:
    """The kind of device that tensors are on by default."""
    return chosen[0].split(":")[0]


def seeded(seed: int) -> "torch.Generator":
    """A generator of the device that tensors are on by default."""
    import torch

    return torch.Generator(chosen[0]).manual_seed(seed)


@contextmanager
def none_by_default() -> Iterator[None]:
    """Within, tensors are on the host but for those that are made `there()`: no default device is set."""
    import torch

    if chosen[0] == HOST:
        yield
        return
    torch.set_default_device(None)
    try:
        yield
    finally:
        torch.set_default_device(chosen[0])


@contextmanager
def there() -> "Iterator[torch.device]":
    """Within, or in a function that this decorates, tensors are made on the device that the tests are for."""
    import torch

    device = torch.device(chosen[0])
    if chosen[0] == HOST:
        yield device
        return
    with device:
        yield device


def reseed(seed: int) -> None:
    """`torch.manual_seed` for the devices in use: that takes milliseconds for notes about those that are not."""
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def random_states() -> "list[torch.Tensor]":
    """The state of the host's random numbers and, where it is in use, of the GPU's."""
    import torch

    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


def why_dead() -> str | None:
    """Why no kernel runs on the GPU any more, if so: after an error on the device none does in this process."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


@contextmanager
def on_target(name: str) -> Iterator[None]:
    """Within, kernels on the host's tensors are made for a target."""
    import smelt

    smelt.reset()
    _make_default(name)
    try:
        yield
    finally:
        _make_default(HOST)
        smelt.reset()


def _make_default(name: str) -> None:
    from smelt.device import find, register
    from tests.simt_host import offer  # noqa: F401  # which may be the target

    target = find(name)
    register(name, lambda: target, devices=(HOST,))
