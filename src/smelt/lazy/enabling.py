"""Makes the lazy device: its owner, its module, and what holds across a fork."""

import os
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from smelt.base.unseen import unseen
from smelt.dispatch.module import DeviceModule
from smelt.ir.graph import GraphCompiler
from smelt.lazy.composites import Composites
from smelt.lazy.owner import LazyOwner
from smelt.lazy.real_device import RealDevice


class LazyModule(DeviceModule):
    """`torch.lazy`."""

    owner: LazyOwner

    def synchronize(self, device: Any = None) -> None:
        self.owner.settle("torch.lazy.synchronize()")
        self.owner.real.synchronize()

    def empty_cache(self) -> None:
        self.owner.real.empty_cache()


_owners: list[LazyOwner] = []
_held: list[Any] = []  # registrations, which end when they die


@unseen
def after_optimizer_step(*_: Any) -> None:
    for owner in _owners:
        owner.end_step()


def make_owner(name: str, real: RealDevice, compiler: GraphCompiler) -> LazyOwner:
    """Claim PyTorch's device for outsiders; it records for the device `real`."""
    module = LazyModule(real.generator)
    owner = LazyOwner(name, real, compiler)
    module.owner = owner
    owner.register(module, real.device)
    _held.extend(Composites(owner.recorder).register())
    follow(owner)
    return owner


def follow(owner: LazyOwner) -> None:
    """End rounds with an optimizer's step: a loop whose values nobody needs would be recorded round after round. And
    let the process fork between two calls."""
    if not _owners:
        register_optimizer_step_post_hook(after_optimizer_step)
    _owners.append(owner)
    lock = owner.recorder.lock
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
