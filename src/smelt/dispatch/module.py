"""The module of our device, `torch.<name>`: functions other than operators that PyTorch expects of a device.

`torch.manual_seed`, `torch.autocast`, `torch.accelerator`, `fork_rng`, DataLoader and `torch.save` look there.
"""

import contextlib
from typing import Any

import torch

from smelt.dispatch.streams import DeviceEvent, DeviceStream


def check_index(index: int | None) -> None:
    """Raise for a second device."""
    if index not in (None, 0):
        raise RuntimeError(f"there is one device of this kind, with number 0, not {index}")


class DeviceModule:
    """A single device, which draws from the generator of another one."""

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
        check_index(device if isinstance(device, int) else torch.device(device).index)

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:
        """A context in which the device is the current one, as it always is."""
        self.set_device(device)
        return contextlib.nullcontext()

    def synchronize(self, device: Any = None) -> None:
        """Wait for what was asked for. The owner overrides this."""

    def empty_cache(self) -> None:
        """No memory is kept that nobody uses."""

    # One stream.

    def current_stream(self, device: Any = None) -> DeviceStream:
        return DeviceStream(self.synchronize)

    default_stream = current_stream

    def Stream(self, device: Any = None, priority: int = 0) -> DeviceStream:
        return self.current_stream()

    def stream(self, stream: DeviceStream) -> DeviceStream:
        return stream

    def Event(self, enable_timing: bool = False, **others: Any) -> DeviceEvent:
        return DeviceEvent(self.synchronize, enable_timing, **others)

    # Random numbers.

    @property
    def default_generators(self) -> tuple[torch.Generator]:
        return (self._generator,)

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        """Numbers come of a generator that `torch.manual_seed` seeds itself."""
        self._generator.manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        self.manual_seed(seed)

    def seed(self) -> int:
        """Seed by chance; the seed is returned."""
        return self._generator.seed()

    def seed_all(self) -> int:
        return self.seed()

    def initial_seed(self) -> int:
        return self._generator.initial_seed()

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        return self._generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        self._generator.set_state(state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state()]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        for state in states:
            self.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]
