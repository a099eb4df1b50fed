"""Level `random`: numbers are random, depend on the seed, and have the right distribution."""

import torch
import torch.nn.functional as F

from smelt_conform.bench import Bench, expect
from smelt_conform.check import Check, Level

_COUNT = 20_000


def _seeded(bench: Bench) -> None:
    def draw(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        drawn = [torch.randn(100, device=bench.name), torch.rand(100, device=bench.name)]
        return [tensor.cpu() for tensor in (*drawn, F.dropout(torch.ones(100, device=bench.name)))]

    first, again, other = draw(1), draw(1), draw(2)
    for one, same, different in zip(first, again, other, strict=True):
        expect(torch.equal(one, same), "the same seed gave other numbers")
        expect(not torch.equal(one, different), "another seed gave the same numbers")


def _fresh(bench: Bench) -> None:
    one, other = torch.randn(100, device=bench.name), torch.randn(100, device=bench.name)
    expect(not torch.equal(one.cpu(), other.cpu()), "two draws one after the other are the same numbers")
    expect(torch.unique(one.cpu()).numel() > 90, "numbers of one draw repeat")


def _normal(bench: Bench) -> None:
    torch.manual_seed(0)
    x = torch.randn(_COUNT, device=bench.name).cpu()
    expect(abs(x.mean().item()) < 0.05, f"normal numbers have the mean {x.mean():.3f}")
    expect(abs(x.std().item() - 1) < 0.05, f"normal numbers have the deviation {x.std():.3f}")
    share = (x.abs() < 1).float().mean().item()
    expect(abs(share - 0.683) < 0.03, f"{share:.1%} of normal numbers are within one deviation, not 68.3 %")
    y = torch.empty(_COUNT, device=bench.name).normal_(5, 0.5).cpu()
    expect(abs(y.mean().item() - 5) < 0.05 and abs(y.std().item() - 0.5) < 0.05, "normal_(5, 0.5) has wrong moments")


def _uniform(bench: Bench) -> None:
    torch.manual_seed(0)
    x = torch.rand(_COUNT, device=bench.name).cpu()
    expect(x.min().item() >= 0 and x.max().item() < 1, f"rand gave {x.min()} to {x.max()}, not [0, 1)")
    tenths = x.mul(10).long().bincount(minlength=10).float() / _COUNT
    expect(bool((tenths - 0.1).abs().max() < 0.02), f"tenths of [0, 1) have the shares {tenths.tolist()}")
    y = torch.empty(_COUNT, device=bench.name).uniform_(-3, 5).cpu()
    least, most = y.min().item(), y.max().item()
    expect(-3 <= least < -2.9 and 4.9 < most <= 5, f"uniform_(-3, 5) gave {least:.2f} to {most:.2f}")


def _dropout(bench: Bench) -> None:
    torch.manual_seed(0)
    x = torch.ones(_COUNT, device=bench.name, requires_grad=True)
    y = F.dropout(x, 0.25)
    (grad,) = torch.autograd.grad(y.sum(), [x])
    dropped = (y == 0).float().mean().item()
    expect(abs(dropped - 0.25) < 0.02, f"dropout(0.25) dropped {dropped:.1%}")
    expect(torch.equal(grad.cpu(), y.detach().cpu()), "the gradient of dropout has another mask")


def _integers(bench: Bench) -> None:
    bench.needs(torch.int64)
    torch.manual_seed(0)
    drawn = torch.randint(0, 7, (_COUNT,), device=bench.name).cpu()
    expect(torch.unique(drawn).tolist() == list(range(7)), "randint(0, 7) has other values than 0 to 6")
    shuffled = torch.randperm(100, device=bench.name).cpu()
    expect(shuffled.sort().values.equal(torch.arange(100)), "randperm(100) is not a permutation")
    expect(not shuffled.equal(torch.arange(100)), "randperm(100) is in order")


def _state(bench: Bench) -> None:
    state = torch.get_rng_state()
    one = torch.rand(50, device=bench.name).cpu()
    torch.set_rng_state(state)
    expect(torch.equal(one, torch.rand(50, device=bench.name).cpu()), "a restored state gave other numbers")


_FILL = "random_fill(), if the chip has it; else copy_in()"

LEVEL = Level(
    "random",
    "Random numbers",
    (
        Check("seeded", "numbers depend on the seed", _FILL, _seeded),
        Check("fresh", "each draw has new numbers", _FILL, _fresh),
        Check("normal", "normal numbers are normal", _FILL, _normal),
        Check("uniform", "uniform numbers are uniform in [0, 1)", _FILL, _uniform),
        Check("dropout", "dropout and its gradient have one mask", _FILL, _dropout),
        Check("integers", "random integers and permutations", "copy_in()", _integers),
        Check("state", "the generator's state can be restored", _FILL, _state),
    ),
)
