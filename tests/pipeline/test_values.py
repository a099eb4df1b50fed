"""Values at the edges of their range, all the way: what eager keeps finite stays finite, what it refuses is refused."""

import pytest
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


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_a_number_is_copied_into_a_tensor(backend: str) -> None:
    def overwrite(x: torch.Tensor, number: float) -> torch.Tensor:
        return (x + 0).copy_(number)

    for x in (torch.ones(3), torch.ones(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)):
        compiled = smelt.compile(overwrite, backend=backend, fullgraph=True)
        for number in (3, 1.75, True, -2):
            torch.testing.assert_close(compiled(x, number), overwrite(x, number))


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_integers_written_from_what_requires_a_gradient(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch lets such a tensor require a gradient, which none of integers can be made with."""

    def write(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        made = torch.bitwise_and(counts, counts)
        made[0] = x.sum()
        return made

    x, counts = torch.ones(3, requires_grad=True), torch.arange(8).reshape(2, 4)
    monkeypatch.setattr(smelt.config, "suppress_errors", False)
    compiled = smelt.compile(write, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(x, counts), write(x, counts))
