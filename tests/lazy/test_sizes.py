"""Sizes that change on the lazy device: symbols after the first change, and nothing compiled for further ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt


def compiles(since: int = 0) -> int:
    return smelt.lazy.explain().compile_count - since


def test_a_training_loop_whose_last_batches_are_smaller() -> None:
    def train(device: str) -> tuple[list[float], list[int]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses, counts = [], []
        torch.manual_seed(1)
        for size in (16, 16, 16, 11, 16, 16, 7, 9, 16, 13):
            x, y = torch.randn(size, 20), torch.randint(0, 10, (size,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            counts.append(compiles())
        return losses, counts

    losses, counts = train("lazy")
    wanted, _ = train("cpu")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-5, atol=1e-6)
    assert counts[2] == counts[1]  # compiled by the second step
    assert counts[3] > counts[2]  # another size
    assert counts[4:] == [counts[3]] * 6


class Reader(nn.Module):
    """Positions, heads, a mask and a product with its own embedding: sizes in views, slices, `arange` and products."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, 16), nn.Embedding(64, 16)
        self.mix, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        batch, length = words.shape
        x = self.words(words) + self.places(torch.arange(length, device=words.device))
        q, k, v = (each.view(batch, length, 2, 8).transpose(1, 2) for each in self.mix(x).chunk(3, -1))
        mask = torch.ones(length, length, dtype=torch.bool, device=words.device).tril()
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 16)
        found: torch.Tensor = self.out(mixed) @ self.words.weight.t()
        return found


def test_sequences_of_different_lengths() -> None:
    def train(device: str) -> tuple[list[float], list[int]]:
        torch.manual_seed(0)
        model = Reader().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses, counts = [], []
        for batch, length in ((4, 10), (4, 10), (4, 10), (4, 7), (4, 9), (4, 13), (3, 9), (5, 11), (2, 6)):
            words = torch.randint(0, 30, (batch, length + 1)).to(device)
            optimizer.zero_grad()
            found = model(words[:, :-1])
            loss = nn.functional.cross_entropy(found.reshape(-1, 30), words[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            counts.append(compiles())
        return losses, counts

    losses, counts = train("lazy")
    wanted, _ = train("cpu")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    assert counts[2] == counts[1]
    assert counts[4] == counts[5] == counts[3]  # lengths, in symbols since the first other one
    assert counts[7] == counts[8] == counts[6]  # batches too


def _shift(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:] += x[:-1]
    y[:, 0].zero_()
    return y.flatten() + torch.arange(x.numel(), device=x.device)


def _halves(x: torch.Tensor) -> torch.Tensor:
    left, right = x[: x.shape[0] // 2], x[x.shape[0] // 2 :]
    return torch.cat([right * 2, left], 0).expand(3, *x.shape).sum(1)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    image = nn.functional.pad(x[None, None], (1, 1, 1, 1))
    weight = torch.ones(2, 1, 3, 3, device=x.device)
    return nn.functional.conv2d(image, weight).mean((2, 3)) + image.amax()


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: (x * 2 + 1).relu(),
    "a mean": lambda x: x.mean(0) / x.shape[0],
    "softmax": lambda x: x.softmax(0) @ x.t(),
    "views and writes": _shift,
    "halves": _halves,
    "images": _pooled,
    "a matrix": lambda x: x.new_ones(x.shape[0], x.shape[0]).triu() @ x,
    "sorted": lambda x: x.sort(0)[0].cumsum(0),
    "outer": lambda x: (x[:, None] - x[None]).square().sum(-1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_become_symbols(name: str) -> None:
    program, counts = PROGRAMS[name], []
    for size in (6, 4, 8, 10, 5, 12, 7):
        x = torch.randn(size, 4)
        torch.testing.assert_close(program(x.to("lazy")).cpu(), program(x))
        counts.append(compiles())
    extra = counts[-1] - counts[1]
    assert extra <= (1 if name == "halves" else 0), counts  # of odd sizes, of which half is another expression


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - {"images"}))
@pytest.mark.parametrize("sizes", [(0, 1, 5, 3), (5, 1, 0, 3, 1, 0), (1, 4, 6), (3, 0, 4, 2, 1)], ids=str)
def test_sizes_of_zero_and_one(name: str, sizes: tuple[int, ...]) -> None:
    program = PROGRAMS[name]
    for size in sizes:
        x = torch.randn(size, 4)
        wanted, found = _outcome(program, x), _outcome(program, x.to("lazy"))
        torch.testing.assert_close(found, wanted, equal_nan=True)


def _outcome(program: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    try:
        return program(x).cpu()
    except (RuntimeError, IndexError) as error:
        return torch.tensor(len(str(error)) * 0)


def test_a_size_that_is_no_inputs() -> None:
    """A position that moves, and lengths that come from nowhere."""
    cache, host = torch.zeros(3, 64, device="lazy"), torch.zeros(3, 64)
    counts = []
    for place in range(12):
        for each in (cache, host):
            each[:, place] = place + 1.0
            each[:, : place + 1] *= 2
        torch.testing.assert_close(cache.cpu(), host)
        counts.append(compiles())
    assert counts[-1] == counts[5], counts


def test_a_guess_that_was_wrong_is_found_out() -> None:
    """With 4 and 8 rows, the other size could be anything of both."""
    for rows, columns in ((4, 8), (8, 16), (5, 16), (6, 9), (7, 7), (7, 3)):
        x, y = torch.randn(rows, 3), torch.randn(columns, 3)
        wanted = x @ y.t() + torch.ones(rows * columns).view(rows, columns)
        ones = torch.ones(rows * columns, device="lazy").view(rows, columns)
        torch.testing.assert_close((x.to("lazy") @ y.to("lazy").t() + ones).cpu(), wanted)


def test_numbers_and_sizes_change_together() -> None:
    counts = []
    for size, rate in ((4, 0.1), (4, 0.2), (6, 0.3), (7, 0.4), (9, 0.5), (3, 0.6)):
        x = torch.randn(size, 5)
        found = (x.to("lazy") * rate + size).sum(0) / size
        torch.testing.assert_close(found.cpu(), (x * rate + size).sum(0) / size)
        counts.append(compiles())
    assert counts[3:] == [counts[2]] * 3 or counts[4:] == [counts[3]] * 2, counts


def test_numbers_of_other_types_are_other_programs() -> None:
    for size, number in ((4, 0.5), (3, 1.5), (5, 2), (6, True), (7, 3), (2, 0.25), (9, -1)):
        x = torch.ones(size)
        torch.testing.assert_close((x.to("lazy") * number).cpu(), x * number)
