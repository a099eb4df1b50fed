"""GPUs that PyTorch is made to speak of where there are none: how many, and which is the current one."""

import pytest
import torch


class Gpus:
    """What PyTorch is made to say."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int) -> None:
        self.current, self.asked = 0, 0
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "_is_compiled", lambda: True)
        patch.setattr(torch.cuda, "_nvml_based_avail", lambda: False)
        patch.setattr(torch.cuda, "_initialized", True)
        patch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
        patch.setattr(torch.cuda, "_cached_device_count", count)
        patch.setattr(torch._C, "_cuda_getDeviceCount", lambda: count, raising=False)
        patch.setattr(torch._C, "_cuda_getDevice", self._answer, raising=False)

    def _answer(self) -> int:
        self.asked += 1
        return self.current
