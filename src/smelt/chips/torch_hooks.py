"""What PyTorch's own compiler and `nn.DataParallel` ask of a chip: the first is refused, the second has one device.

    torch.compile(model)(x)            x on sim: SM070, which names smelt.compile
    nn.DataParallel(model)(x)          the model itself, on the one device that there is
"""

import functools
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from smelt.base.errors import SmeltError


class NoCodegen:
    """Stands where PyTorch's compiler looks for a device's code generators; whatever it asks of them is refused."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> SmeltError:
        hint = "smelt.compile does; torch.compile(..., backend='eager') runs operator by operator"
        return SmeltError("SM070", f"torch.compile generates no code for the chip {self._name!r}", hint=hint)

    @property
    def supports_caching(self) -> bool:  # the first that is asked
        raise self._refuse()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._refuse()


def run_on_one_device(name: str) -> None:
    """Have `nn.DataParallel` give the whole batch to the one device: PyTorch's own way needs a build with CUDA."""
    original: Any = nn.DataParallel.scatter

    @functools.wraps(original)
    def scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        device = self.src_device_obj
        if device.type != name:
            return original(self, inputs, kwargs, device_ids)
        if len(device_ids) > 1:
            raise SmeltError("SM070", f"the chip {name!r} is one device, and not {len(device_ids)}")
        moved = tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, (inputs, kwargs))
        return (moved[0],), (moved[1] or {},)

    nn.DataParallel.scatter = scatter  # type: ignore[method-assign]
