"""Makes the lazy device: its owner, its module, and what holds across a fork."""

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from smelt.base.unseen import unseen
from smelt.dispatch.module import DeviceModule
from smelt.ir.graph import GraphCompiler
from smelt.lazy.backwards import stand_before_engine
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


def _told(setter: Callable[[Any], None]) -> Callable[[Any], None]:
    """PyTorch's function that sets the default dtype, of which all owners are told."""

    @wraps(setter)
    def told(chosen: Any) -> None:
        change = partial(setter, chosen)
        for owner in _owners:
            change = partial(owner.with_default_dtype, change)
        change()

    return told


def make_owner(name: str, real: RealDevice, compiler: GraphCompiler) -> LazyOwner:
    """Claim PyTorch's device for outsiders; it records for the device `real`."""
    module = LazyModule(real.generator)
    owner = LazyOwner(name, real, compiler)
    module.owner = owner
    owner.register(module, real.device)
    _held.extend(Composites(owner.recorder).register())
    stand_before_engine(owner.recorder, owner.blocks)
    follow(owner)
    return owner


def follow(owner: LazyOwner) -> None:
    """End rounds with an optimizer's step: a loop whose values nobody needs would be recorded round after round. Let
    the default dtype change between two recordings, and the process fork between two calls."""
    if not _owners:
        register_optimizer_step_post_hook(after_optimizer_step)
        for name in ("_set_default_dtype", "_set_default_tensor_type"):  # all others call these
            setattr(torch._C, name, _told(getattr(torch._C, name)))
    _owners.append(owner)
    lock = owner.recorder.lock
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
