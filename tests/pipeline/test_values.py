"""Values at the edges of their range, all the way: what eager keeps finite stays finite, what it refuses is refused."""

import torch

import smelt


def test_addcmul_scales_before_it_multiplies() -> None:
    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, a, b, value=1e-10)

    given = torch.zeros(3), torch.full((3,), 1e20), torch.full((3,), 1e25)
    assert torch.isfinite(function(*given)).all()
    torch.testing.assert_close(smelt.compile(function)(*given), function(*given))
