"""Operators by the chip's own optional methods, where it has them: `matmul` and `random_fill`.

    x @ w.t()              contiguous operands, then Chip.matmul
    x.normal_(1, 2)        a seed from the generator, Chip.random_fill, then a kernel that scales

A method that returns NotImplemented leaves the call to kernels, or to the host.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.base import events
from smelt.chips.runtime import ChipDevice
from smelt.device.chip import offers
from smelt.device.host_library import HOST
from smelt.dispatch.tensors import layout_of

aten = torch.ops.aten

Compute = Callable[[torch._ops.OpOverload, tuple[Any, ...], Mapping[str, Any]], Any]
Answer = Callable[..., Any]


class OwnMethods:
    """Answers by methods of one chip; `compute` is what happens without them."""

    def __init__(self, device: ChipDevice, compute: Compute) -> None:
        self._device = device
        self._compute = compute

    def answers(self) -> dict[torch._ops.OpOverload, Answer]:
        """For the operators that the chip's methods serve."""
        answer_of: dict[torch._ops.OpOverload, Answer] = {}
        if offers(self._device.chip, "matmul"):
            for operator, answer in (
                (aten.mm.default, self._mm),
                (aten.bmm.default, self._bmm),
                (aten.addmm.default, self._addmm),
                (aten.mm.out, self._into(aten.mm.default, self._mm)),
                (aten.bmm.out, self._into(aten.bmm.default, self._bmm)),
                (aten.addmm.out, self._into(aten.addmm.default, self._addmm)),
            ):
                answer_of[operator] = answer
        if offers(self._device.chip, "random_fill"):
            answer_of[aten.uniform_.default] = self._uniform
            answer_of[aten.normal_.default] = self._normal
            for packet, fill in ((aten.rand, self._uniform), (aten.randn, self._normal)):
                answer_of[packet.default] = answer_of[packet.generator] = self._new(fill)
        return answer_of

    # Products.

    def _mm(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = self._product(a, b) if a.dim() == b.dim() == 2 else None
        result: torch.Tensor = self._compute(aten.mm.default, (a, b), {}) if product is None else product
        return result

    def _bmm(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = self._product(a, b) if a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0] else None
        result: torch.Tensor = self._compute(aten.bmm.default, (a, b), {}) if product is None else product
        return result

    def _addmm(self, bias: Any, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
        product = self._product(a, b) if beta == alpha == 1 and a.dim() == b.dim() == 2 else None
        result: torch.Tensor
        if product is None:
            result = self._compute(aten.addmm.default, (bias, a, b), {"beta": beta, "alpha": alpha})
        else:
            result = self._compute(aten.add.Tensor, (product, bias), {})
        return result

    def _into(self, operator: torch._ops.OpOverload, answer: Answer) -> Answer:
        """An operator that is given where its result goes, as by programs."""

        def write(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            result = answer(*args, **kwargs)
            if out.shape != result.shape:
                out.resize_(result.shape)
            return out.copy_(result)

        return write

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        """Of one or of several matrices; None where the chip does not do it."""
        device = self._device
        fits = device.is_ours(a) and device.is_ours(b) and a.dtype == b.dtype and a.shape[-1] == b.shape[-2]
        if not fits or not a.numel() or not b.numel() or not a.dtype.is_floating_point:
            return None
        one, other = a.contiguous(), b.contiguous()
        batch = a.shape[0] if a.dim() == 3 else 1
        shape = (*a.shape[:-1], b.shape[-1])
        product = device.new(shape, torch.empty(shape, device="meta").stride(), a.dtype)
        addresses = [device.address_of(each) for each in (product, one, other)]
        sizes = (batch, a.shape[-2], a.shape[-1], b.shape[-1])
        dtype = str(a.dtype).removeprefix("torch.")
        if device.ask(device.chip.matmul, *addresses, *sizes, dtype) is NotImplemented:
            return None
        events.count("chip_matmuls")
        return product

    # Random numbers.

    def _uniform(self, tensor: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
        if not self._filled(tensor, "uniform", generator):
            return self._compute(aten.uniform_.default, (tensor, low, high), {"generator": generator})
        return tensor if (low, high) == (0.0, 1.0) else tensor.mul_(high - low).add_(low)

    def _normal(self, tensor: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
        if not self._filled(tensor, "normal", generator):
            return self._compute(aten.normal_.default, (tensor, mean, std), {"generator": generator})
        return tensor if (mean, std) == (0.0, 1.0) else tensor.mul_(std).add_(mean)

    def _new(self, fill: Answer) -> Answer:
        """A factory: new memory, filled."""

        def make(size: Any, *, generator: Any = None, **options: Any) -> torch.Tensor:
            empty = torch.empty(size, dtype=options.get("dtype"), device=self._device.name)
            filled: torch.Tensor = fill(empty, generator=generator)
            return filled

        return make

    def _filled(self, tensor: torch.Tensor, distribution: str, generator: Any) -> bool:
        """Whether the chip has filled the tensor. The seed is drawn as the host draws, so that it follows the state."""
        _, _, _, dtype = layout_of(tensor)
        if dtype is not torch.float32 or not tensor.is_contiguous() or not tensor.numel():
            return False
        seed = torch.empty((), dtype=torch.int64, device=HOST).random_(generator=generator).item()
        device = self._device
        asked = (device.address_of(tensor), tensor.numel(), distribution, seed)
        if device.ask(device.chip.random_fill, *asked) is NotImplemented:
            return False
        events.count("chip_random_fills")
        return True
