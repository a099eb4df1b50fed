"""Functions written with simpler ones: how exact they are over their range, and what they give at its ends."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import smelt
from tests.targets import seeded

inf, nan = torch.inf, torch.nan
_EXACT: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cosh": np.cosh, "sinh": np.sinh, "tan": np.tan,
}  # fmt: skip
# The largest error in units in the last place, of float32 and of float64, as docs/math.md has them.
_LARGEST = {
    "acos": (2.2, 2.2), "acosh": (2.0, 1.8), "asin": (2.4, 2.6), "asinh": (1.6, 1.6), "atan": (1.4, 1.6),
    "atan2": (1.6, 1.8), "atanh": (2.0, 1.6), "cosh": (2.4, 1.6), "sinh": (2.4, 1.8), "tan": (3.0, 3.0),
}  # fmt: skip
_TURNED = {"acos", "asin", "atanh"}  # no further than one


def _inputs(name: str, dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Numbers of every exponent, and as many near where the function turns."""
    generator = seeded(seed)
    low, high = (-120, 120) if dtype is torch.float32 else (-1000, 1000)
    powers = torch.randint(low, min(high, 1 if name in _TURNED else high), (count,), generator=generator)
    spread = torch.ldexp(torch.rand(count, generator=generator, dtype=torch.float64) + 0.5, powers)
    near = (torch.rand(count, generator=generator, dtype=torch.float64) - 0.5) * (2 if name in _TURNED else 180)
    edge = 1 - torch.ldexp(torch.ones(64, dtype=torch.float64), -torch.arange(64).remainder(30))
    signs = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    found = torch.cat([spread * signs, near, edge, 2 - edge if name not in _TURNED else -edge])
    return found.clamp(-1, 1).to(dtype) if name in _TURNED else found.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", _EXACT)
def test_they_are_as_exact_as_is_said(name: str, dtype: torch.dtype) -> None:
    function, count = getattr(torch, name), 20_000 if dtype is torch.float32 else 5_000
    given = [_inputs(name, dtype, count, seed) for seed in range(2 if name == "atan2" else 1)]
    if name == "acosh":
        given = [given[0].abs() + 1]
    found = smelt.compile(lambda *given: function(*given) + 0)(*given).cpu()
    with np.errstate(all="ignore"):
        wide = np.float64 if dtype is torch.float32 else np.longdouble
        exact = _EXACT[name](*(each.cpu().numpy().astype(wide) for each in given))
        rounded = torch.from_numpy(exact.astype(found.numpy().dtype))
        usual = torch.isfinite(rounded) & (rounded.abs() >= torch.finfo(dtype).tiny)
        ulp = np.spacing(np.abs(rounded.numpy())).astype(wide)
        errors = (np.abs(found.numpy().astype(wide) - exact) / ulp)[usual.numpy()]
    assert usual.sum() > count and torch.equal(torch.isnan(found), torch.isnan(rounded))
    assert torch.isfinite(found)[usual].all() and float(errors.max()) <= _LARGEST[name][dtype is torch.float64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in _EXACT if name != "atan2"])
def test_at_the_ends(name: str, dtype: torch.dtype) -> None:
    ends = [0.0, -0.0, inf, -inf, nan, 1, -1, 2, -2, 0.5, 89, -89, 89.4, 90, 709.9, 711, 1e-38, 1e38]
    x = torch.tensor(ends, dtype=dtype)
    function = getattr(torch, name)
    found = smelt.compile(lambda x: function(x))(x)
    # One by one and in float64: of vectors PyTorch's own overflow too soon.
    expected = torch.stack([function(each.double()) for each in x]).to(dtype)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(torch.signbit(found)[expected == 0], torch.signbit(expected)[expected == 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_quarters(dtype: torch.dtype) -> None:
    ends = torch.tensor([0.0, -0.0, 1, -1, 3, -3, 1e-30, -1e30, inf, -inf, nan], dtype=dtype)
    found = smelt.compile(lambda y, x: torch.atan2(y, x))(ends[:, None], ends)
    expected = torch.atan2(ends[:, None], ends)
    torch.testing.assert_close(found, expected, equal_nan=True)
    usual = ~torch.isnan(expected)
    assert torch.equal(torch.signbit(found)[usual], torch.signbit(expected)[usual])
