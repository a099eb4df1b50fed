"""Random numbers on a GPU are those that eager draws: every bit, and the state that is left."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.gpu.helpers import CUDA, assert_same_bits, randn

# Less than a vector, ragged ones, whole blocks, and more than all threads of a GPU draw in one round.
COUNTS = [1, 7, 256, 1000, 4 * 4096 + 5, 2**20 + 3, 5 * 2**20]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def hold(function: Callable[..., Any], *args: Any, calls: int = 3, seed: int = 11) -> None:
    """Several calls in a row from one seed, each with what the one before has left."""
    compiled = smelt.compile(function, options={"fallback": False})
    outcomes = []
    for run in (function, compiled):
        torch.manual_seed(seed)
        told: list[torch.Tensor] = []
        for _ in range(calls):
            found = run(*args)
            told += [each.detach().clone() for each in (found if isinstance(found, tuple) else (found,))]
            told.append(torch.cuda.get_rng_state())
        outcomes.append(told)
    parts = len(outcomes[0]) // calls
    for place, (eager, mine) in enumerate(zip(*outcomes, strict=True)):
        what = "the random state" if place % parts == parts - 1 else f"result {place % parts}"
        assert_same_bits(mine, eager, f"call {place // parts}, {what}")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout_masks(dtype: torch.dtype, count: int) -> None:
    hold(lambda x: F.dropout(x, 0.3), torch.ones(count, dtype=dtype, device=CUDA))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999, 1.0])
def test_dropout_by_how_much_is_dropped(p: float, dtype: torch.dtype) -> None:
    hold(lambda x: F.dropout(x, p), torch.ones(33, 65, dtype=dtype, device=CUDA))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout_among_other_operators(dtype: torch.dtype) -> None:
    """Fused with what is around it, the mask is the same; and several masks of one graph come in eager's order."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = F.dropout(torch.where(x > 0, x, 1.0), 0.4)
        second = F.dropout(y.abs() + 1, 0.2)
        return first != 0, second != 0, F.dropout(x * 2 + y, 0.5) == 0

    hold(function, randn(70, 130, dtype=dtype), randn(70, 130, dtype=dtype, seed=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("recompute", [True, False])
def test_the_backward_of_dropout_has_the_mask_of_the_forward(dtype: torch.dtype, recompute: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(x), 0.3).float().square()

    compiled = smelt.compile(function, options={"fallback": False, "recompute": recompute})
    for seed in range(3):
        found = []
        for run in (function, compiled):
            x = randn(64, 513, dtype=dtype, grad=True)
            torch.manual_seed(seed)
            out = run(x)
            (gradient,) = torch.autograd.grad(out.sum(), x)
            found.append((out.detach() != 0, gradient != 0, torch.cuda.get_rng_state()))
        for what, eager, mine in zip(("forward mask", "backward mask", "random state"), *found, strict=True):
            assert_same_bits(mine, eager, f"seed {seed}, {what}")


DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rand": lambda x: torch.rand(x.shape, device=x.device),
    "rand_like": lambda x: torch.rand_like(x),
    "randn": lambda x: torch.randn(x.shape, device=x.device),
    "randn_like": lambda x: torch.randn_like(x),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "bernoulli of several": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.25),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-2, 3),
    "normal_": lambda x: torch.empty_like(x).normal_(1, 2),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "randint": lambda x: torch.randint(0, 1000, x.shape, device=x.device),
    "randperm": lambda x: torch.randperm(x.shape[0], device=x.device),
    "multinomial": lambda x: torch.multinomial(torch.softmax(x, -1), 2, replacement=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "two kinds": lambda x: (torch.rand_like(x), torch.randn_like(x), F.dropout(torch.ones_like(x), 0.5)),
}


@pytest.mark.parametrize("shape", [(3, 5), (64, 1000), (257, 4097)], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_everything_that_draws(name: str, shape: tuple[int, int]) -> None:
    hold(DRAWS[name], randn(*shape))


def test_generators_of_the_users() -> None:
    """Each has a state of its own; the default one stays where it is."""
    compiled = smelt.compile(lambda x, g: x + torch.rand(x.shape, generator=g, device=x.device))

    def plain(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=g, device=x.device)

    x = randn(100, 33)
    outcomes = []
    for run in (plain, compiled):
        torch.manual_seed(5)
        given = [torch.Generator(CUDA).manual_seed(number) for number in (1, 2)]
        told = [run(x, given[number]) for number in (0, 1, 0)]
        outcomes.append([*told, *(each.get_state() for each in given), torch.cuda.get_rng_state()])
    for place, (eager, mine) in enumerate(zip(*outcomes, strict=True)):
        assert_same_bits(mine, eager, f"part {place} of three results and three states")


def test_fork_rng_around_a_compiled_call() -> None:
    compiled = smelt.compile(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    x = torch.ones(1000, device=CUDA)
    torch.manual_seed(1)
    before = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        first = compiled(x)
    assert_same_bits(torch.cuda.get_rng_state(), before, "the state after the block")
    assert_same_bits(compiled(x), first, "the same call again")


def test_fork_rng_within_a_compiled_function() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.random.fork_rng(devices=[0]):
            inside = torch.rand_like(x)
        return inside, torch.rand_like(x)

    outcomes = []
    for run in (function, smelt.compile(function)):
        torch.manual_seed(1)
        outcomes.append([*run(torch.ones(1000, device=CUDA)), torch.cuda.get_rng_state()])
    for place, (eager, mine) in enumerate(zip(*outcomes, strict=True)):
        assert_same_bits(mine, eager, ("inside", "behind", "random state")[place])


def test_the_seed_is_read_at_every_call() -> None:
    compiled = smelt.compile(lambda x: F.dropout(x, 0.5))
    found = []
    for seed in (1, 2, 1):
        torch.cuda.manual_seed(seed)
        found.append(compiled(torch.ones(1000, device=CUDA)))
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
