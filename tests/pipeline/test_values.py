"""Values at the edges of their range, all the way: what eager keeps finite stays finite, what it refuses is refused."""

import torch

import smelt


def test_addcmul_scales_before_it_multiplies() -> None:
    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, a, b, value=1e-10)

    given = torch.zeros(3), torch.full((3,), 1e20), torch.full((3,), 1e25)
    assert torch.isfinite(function(*given)).all()
    torch.testing.assert_close(smelt.compile(function)(*given), function(*given))


def test_what_is_written_is_read_where_it_lies() -> None:
    """A copy of the old values had no gaps, and was read as if it had: memory behind it came into the result."""

    def average(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        mean.copy_(mean * 0.5 + x.detach().mean(0))
        return x * mean

    mine, theirs = torch.arange(10.0)[::2], torch.arange(10.0)[::2]
    x = torch.randn(3, 5, requires_grad=True)
    torch.testing.assert_close(smelt.compile(average)(x, mine), average(x, theirs))
    torch.testing.assert_close(mine, theirs)
