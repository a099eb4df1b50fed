"""The module of our device, `torch.<name>`: what PyTorch asks a device for beside operators.

`torch.manual_seed`, `torch.autocast`, `torch.accelerator`, `fork_rng`, DataLoader and `torch.save` look there.
"""

from typing import Any

import torch


class DeviceModule:
    """One device, whose random numbers are those of another one."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if index not in (None, 0):
            raise RuntimeError(f"there is one device of this kind, with number 0, not {index}")

    def synchronize(self, device: Any = None) -> None:
        """Wait for what was asked for. The owner overrides this."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        """Numbers come of a generator that `torch.manual_seed` seeds itself."""
        self._generator.manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        self.manual_seed(seed)

    def initial_seed(self) -> int:
        return self._generator.initial_seed()

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        return self._generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        self._generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]
