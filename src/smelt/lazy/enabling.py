"""Makes the lazy device: its owner, its module, and what holds across a fork."""

import os
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from smelt.base.unseen import unseen
from smelt.device.host_library import on_host
from smelt.dispatch.accelerator import answer_for_accelerator
from smelt.dispatch.copies import keep_sharing
from smelt.dispatch.device import claim
from smelt.dispatch.files import register_files
from smelt.dispatch.module import DeviceModule
from smelt.ir.graph import GraphCompiler
from smelt.lazy.moved_modules import keep_parameters
from smelt.lazy.owner import LazyOwner


class LazyModule(DeviceModule):
    """`torch.lazy`."""

    owner: LazyOwner

    def synchronize(self, device: Any = None) -> None:
        self.owner.settle("torch.lazy.synchronize()")


_owners: list[LazyOwner] = []
_held: list[Any] = []  # registrations, which end when they die


@unseen
def after_optimizer_step(*_: Any) -> None:
    for owner in _owners:
        owner.end_step()


def make_owner(name: str, real: torch.device, compiler: GraphCompiler) -> LazyOwner:
    """Claim PyTorch's device for outsiders; it records for the device `real`."""
    generator = torch.default_generator if on_host(real) else torch.cuda.default_generators[real.index or 0]
    module = LazyModule(generator)
    owner = LazyOwner(name, real, compiler)
    module.owner = owner
    claim(name, owner, module)
    register_files(name, lambda whole: owner.recorder.wrap(whole.to(real)))
    keep_parameters(name)
    keep_sharing(name)
    _held.extend(answer_for_accelerator(name, module, real))
    # A loop whose values nobody needs would be recorded round after round; its rounds end here.
    if not _owners:
        register_optimizer_step_post_hook(after_optimizer_step)
    _owners.append(owner)
    lock = owner.recorder.lock
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return owner
