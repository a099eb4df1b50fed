"""Specs of Fourier transforms. Without MKL (all but x86) their results are row-major.

    aten._fft_r2c(f32[5, 6], [0], 0, True)  → c64[3, 6]

MKL leaves the transformed dimensions innermost, in an order that depends on how many it takes at a time, and PyTorch's
own description is not always the same. There the transform itself is asked, once for each shape, on any numbers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.specs import row_major

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten


def _complex_to_complex(value: Any, dims: Sequence[int], normalization: int, forward: bool) -> Any:
    if not dims or not value.dtype.is_complex:
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


def _real_to_complex(value: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    if not dims or value.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    shape = list(value.shape)
    if onesided:
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    return row_major(tuple(shape), value.dtype.to_complex())


def _complex_to_real(value: Any, dims: Sequence[int], normalization: int, last: int) -> Any:
    if not dims or not value.dtype.is_complex:
        return NotImplemented
    shape = list(value.shape)
    shape[dims[-1]] = last
    return row_major(tuple(shape), value.dtype.to_real())


def _asked(op: torch._ops.OpOverload) -> Any:
    def ask(value: Any, *args: Any) -> Any:
        if not all(isinstance(number, int) for number in (*value.shape, *value.stride())) or not on_host(value.device):
            return NotImplemented
        room = torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype).zero_()
        return UnplacedSpec.of(op(room, *args))

    return ask


RULES: dict[str, Any] = {
    "_fft_c2c.default": _complex_to_complex,
    "_fft_r2c.default": _real_to_complex,
    "_fft_c2r.default": _complex_to_real,
}
if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
    RULES = {name: _asked(getattr(aten, name.partition(".")[0]).default) for name in RULES}
