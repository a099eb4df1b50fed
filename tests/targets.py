"""Where the tests run, if not on the host as it is: on a GPU, or by GPU schedules on the host.

    pytest --device cuda tests/ops        tensors that tests make without saying where are on the GPU
    pytest --target simt-host tests/ops   kernels are those of a GPU, run on the host, where a warp is a vector
"""

from collections.abc import Iterator
from contextlib import contextmanager

HOST = "cpu"


def use(device: str | None, target: str | None) -> None:
    """Run what follows there. Nothing is imported where both are as ever."""
    if target is not None:
        _make_default(target)
    if device is not None:
        import torch

        torch.set_default_device(device)


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
    from smelt.codegen import targets
    from smelt.device import register

    describe = {HOST: targets._describe_cpu, targets.SIMT_HOST: targets._describe_simt_host}[name]
    register(name, describe, devices=(HOST,))
