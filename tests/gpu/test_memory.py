"""Memory of a GPU: no higher peak than eager's, nothing that stays, and PyTorch's own error where it runs out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests import processes
from tests.gpu.helpers import CUDA, randn

SLACK = 4 << 20
"""Bytes: blocks of the allocator are rounded up, and a library may keep a workspace."""


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return out


def model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block()).to(CUDA, dtype)


def peak(step: Callable[[], Any], warm: int = 3) -> int:
    """The most that is allocated at once during a call, above what is there before it."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def training(run: Any, module: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        module.zero_grad(set_to_none=True)
        run(x).float().square().mean().backward()

    return step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("train", [True, False], ids=["training", "inference"])
def test_the_peak_is_not_above_eagers(train: bool, dtype: torch.dtype) -> None:
    x, found = randn(8, 256, 512, dtype=dtype), []
    for wrap in (lambda module: module, smelt.compile):
        smelt.reset()
        module = model(dtype)
        run: Any = wrap(module)
        if train:
            found.append(peak(training(run, module, x)))
        else:
            with torch.no_grad():
                found.append(peak(lambda run=run: run(x)))  # type: ignore[misc]
        del module, run
        torch.cuda.empty_cache()
    eager, mine = (size / 2**20 for size in found)
    assert found[1] <= found[0] + SLACK, f"{mine:.1f} MiB, eager {eager:.1f} MiB"


def test_nothing_stays_behind_calls() -> None:
    module = model(torch.bfloat16)
    step = training(smelt.compile(module), module, randn(8, 256, 512, dtype=torch.bfloat16))
    held = []
    for number in range(40):
        step()
        if number in (9, 39):
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_allocated())
    assert held[0] == held[1], f"{held[1] - held[0]} bytes more after thirty more steps"


_BEGIN = """
import torch, smelt
torch.set_default_device("cuda")
torch.manual_seed(0)
N, MiB = 8192, 2**20                       # N x N floats are 256 MiB
x = torch.randn(N, 64) / 8
def update(state, x):
    weights = torch.softmax(x @ x.t(), -1)      # two such matrices at least
    found = weights.sin() @ x
    state.add_(found.sum(0))
    return found, weights.amax(-1)
compiled = smelt.compile(update, options={"fallback": False})
def limit(size):
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, size / total))
def checked():
    one, other = torch.zeros(64), torch.zeros(64)
    mine, eager = compiled(one, x), update(other, x)
    torch.testing.assert_close((*mine, one), (*eager, other))
"""


@pytest.mark.parametrize("first", ["called before", "first call"])
def test_out_of_memory_is_pytorchs_error_and_leaves_nothing(first: str) -> None:
    done = processes.run_new(
        _BEGIN
        + f"""
held, stream = torch.cuda.memory_allocated(), torch.cuda.current_stream()
if {first == "called before"}:
    checked()
    stream = torch.cuda.Stream()           # the memory of the calls before is that of their stream
state = torch.ones(64)
stream.wait_stream(torch.cuda.current_stream())
limit(held + 100 * MiB)
for attempt in range(2):
    try:
        with torch.cuda.stream(stream):
            compiled(state, x)
        print("no error")
    except torch.OutOfMemoryError as error:
        print("told:", str(error)[:18])
torch.cuda.synchronize()
assert torch.equal(state, torch.ones(64)), "something was written"
limit(1 << 60)
for _ in range(4):                         # what is recorded has its memory then
    checked()
left = torch.cuda.memory_allocated()
checked()
assert torch.cuda.memory_allocated() <= left, "memory stays behind"
print("fine")
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*["told: CUDA out of memory"] * 2, "fine"], done


def test_memory_of_earlier_calls_serves_later_ones() -> None:
    """A program keeps the memory it works in: once it ran on a stream, nobody can take that away from it."""
    done = processes.run_new(
        _BEGIN
        + """
checked()
state, wanted = torch.ones(64), torch.ones(64)
update(wanted, x)
limit(torch.cuda.memory_allocated() + 100 * MiB)
compiled(state, x)
torch.testing.assert_close(state, wanted)
print("fine")
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["fine"], done


def test_memory_that_the_allocator_keeps_is_given_back_when_it_runs_short() -> None:
    """As in eager: what is free but kept for sizes nobody asks for any more does not stand in the way."""
    done = processes.run_new(
        _BEGIN
        + """
checked()
limit(2000 * MiB)
kept = [torch.empty(90 * MiB, dtype=torch.uint8) for _ in range(14)]
del kept                                    # 1,260 MiB in blocks that are too small for a matrix
checked()
print("fine")
"""
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
