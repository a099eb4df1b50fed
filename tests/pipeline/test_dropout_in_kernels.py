"""Dropout as PyTorch's CUDA kernel draws it, in kernels: against a model of that kernel, thread by thread."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.errors import SmeltWarning, UnexpectedResult
from smelt.base.events import collect
from smelt.base.options import Options
from smelt.codegen import build
from smelt.codegen.gpu import grid_plan
from smelt.ir.kernel import Compute
from smelt.ir.nodes import philox_draws
from smelt.ir.nodes.philox_draws import Draws, mask, taken_at_once, threshold
from smelt.ir.program import Launch, Library, Program
from smelt.ops.decompose import rearrange
from smelt.runtime.cuda import dropout_check
from tests.absent_device.ahead import Ahead, compile_ahead, spec_like
from tests.codegen.gpu.test_philox import MASK, plain
from tests.codegen.gpu.test_ptx import assembled, assembled_here
from tests.targets import chosen

pytestmark = pytest.mark.skipif(chosen[0] != "cpu", reason="where a GPU is, its own kernel is there to compare with")

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SEED, OFFSET = 0x9E3779B97F4A7C15, 4 * 0x40000003


@dataclass
class Sequence:
    """What one thread draws: `curand_init(seed, thread, offset)`, then four words at a time."""

    seed: int
    thread: int
    counter: int

    def four(self) -> tuple[int, ...]:
        at = (self.counter & MASK, self.counter >> 32, self.thread & MASK, self.thread >> 32)
        self.counter += 1
        return plain(at, (self.seed & MASK, self.seed >> 32))


def drawn_by_threads(count: int, blocks: int, width: int, seed: int, offset: int) -> tuple[list[int], int]:
    """The word of each element, as PyTorch's kernel goes through them, and how far its generator moves. `width`: how
    many elements a thread loads at once."""
    threads = min((count + 255) // 256, blocks) * 256
    words = [0] * count
    for thread in range(threads):
        state = Sequence(seed, thread, offset // 4)
        if width == 1:
            for first in range(thread, -(-count // (4 * threads)) * 4 * threads, 4 * threads):
                for place, word in enumerate(state.four()):
                    if first + place * threads < count:
                        words[first + place * threads] = word
            continue
        for first in range(thread * width, count, threads * width):
            for part in range(0, width, 4):
                many = min(4, width)  # of two the other words are left
                words[first + part : first + part + many] = state.four()[:many]
    return words, ((count - 1) // (threads * 4) + 1) * 4


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("rounds", [0.01, 0.4, 1.0, 1.01, 3.3])
def test_masks_are_those_of_the_kernel(width: int, blocks: int, rounds: float) -> None:
    count = max(width, int(rounds * blocks * 256 * width) // width * width)
    words, moved = drawn_by_threads(count, blocks, width, SEED, OFFSET)
    draws = Draws.by_blocks(count, blocks, width)
    below = threshold(0.7, torch.float32)
    seed, offset = torch.tensor(SEED - (1 << 64)), torch.tensor(OFFSET)
    found = mask(seed, offset, count, draws.threads, width, below, 0, device=seed.device)
    assert found.tolist() == [word < below for word in words] and draws.words == moved
    later = mask(seed, offset - 400, count, draws.threads, width, below, 400, device=seed.device)
    assert torch.equal(found, later)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kept", [0.9, 0.5, 1 / 3, 0.7, 1e-9, 1 - 1e-9, 1 - 2**-24, 2**-33])
def test_thresholds(kept: float, dtype: torch.dtype) -> None:
    """A word stands for word · 2⁻³² + 2⁻³³ in float32, which is compared with a float32, or with a float64."""
    below = threshold(kept, dtype)
    words = torch.tensor(sorted({max(0, below - 1), min(below, MASK), 0, MASK, 12345}))
    numbers = (words.float().double() * 2.0**-32 + 2.0**-33).float()
    bound = torch.tensor(kept, dtype=torch.float64)
    want = numbers.double() < bound if dtype is torch.float64 else numbers < bound.float()
    assert ((words < below) == want).all()


def test_how_many_are_taken_at_once() -> None:
    found = [taken_at_once(count, torch.float32) for count in (8, 4, 12, 6, 7)]
    assert found == [4, 4, 4, 2, 1]
    assert [taken_at_once(count, torch.float64) for count in (8, 4, 12, 6, 7)] == [2, 2, 2, 2, 1]
    assert [taken_at_once(count, torch.bfloat16) for count in (16, 4, 12, 6, 7)] == [8, 4, 4, 2, 1]


# Whole programs, on the host: its tensors stand for those of a GPU with few multiprocessors.


@dataclass
class Generator:
    seed: int = SEED
    offset: int = OFFSET
    reason: str | None = None
    calls: list[tuple[int, int, int]] = field(default_factory=list)  # words, operands from outside, alignment

    def moved(self, device: torch.device, words: int) -> tuple[int, int]:
        self.offset += words
        return self.seed, self.offset - words

    def why_not(self, given: Any, device: torch.device, blocks: int, alignment: int) -> str | None:
        self.calls.append((blocks, len(given), alignment))
        return self.reason


BLOCKS = 3


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Generator]:
    made = Generator()
    monkeypatch.setattr(rearrange, "on_host", lambda device: False)
    monkeypatch.setattr(dropout_check, "blocks_for", lambda device, dtype, at_once, target="": BLOCKS)
    monkeypatch.setattr(philox_draws, "moved", made.moved)
    monkeypatch.setattr(philox_draws, "_why_not", made.why_not)
    smelt.reset()
    yield made
    smelt.reset()


def dropped(x: torch.Tensor, p: float) -> torch.Tensor:
    result: torch.Tensor = torch.native_dropout(x, p, True)[0]
    return result


def want(x: torch.Tensor, p: float, offset: int) -> tuple[torch.Tensor, int]:
    """What PyTorch's kernel gives, and its generator's next offset."""
    width = taken_at_once(x.numel(), x.dtype)
    words, moved = drawn_by_threads(x.numel(), BLOCKS, width, SEED, offset)
    below = threshold(1 - p, x.dtype)
    kept = torch.tensor([word < below for word in words]).view(x.shape)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    scale = 1 / torch.tensor(1 - p, dtype=torch.float64).to(wide)
    return (x.to(wide) * kept * scale).to(x.dtype), offset + moved


def compiled(function: Any) -> Any:
    return smelt.compile(function, options={"target": "simt-host", "check_specs": True, "fallback": False})


@pytest.fixture
def in_vectors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads take many elements side by side, however few there are: then four have the words of one counter."""
    build.forget()
    monkeypatch.setattr(grid_plan, "_ENOUGH_BLOCKS", 0)
    yield
    build.forget()


SHAPES = [(7,), (1,), (6,), (33, 20), (31, 34), (64, 129), (5, 7, 9), (3, 1025, 4)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_and_gradients(
    shape: tuple[int, ...], dtype: torch.dtype, generator: Generator, in_vectors: None
) -> None:
    x = torch.randn(shape).to(dtype).requires_grad_()
    expected, offset = want(x.detach(), 0.3, OFFSET)
    with collect() as events:
        y = compiled(lambda x: dropped(x, 0.3))(x)
        y.backward(torch.ones_like(y))
    assert torch.equal(y.detach(), expected) and generator.offset == offset
    assert x.grad is not None and torch.equal(x.grad, want(torch.ones_like(x.detach()), 0.3, OFFSET)[0])
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    calls = [step.op for program in programs for step in program.steps if isinstance(step, Library)]
    assert calls == [philox_draws.PHILOX_STATE] and len(generator.calls) == 1
    blocks, outside, alignment = generator.calls[0]
    assert (blocks, outside) == (BLOCKS, 1)
    assert alignment == taken_at_once(x.numel(), dtype) * dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_that_take_one_element(dtype: torch.dtype, generator: Generator) -> None:
    x = torch.randn(33, 24).to(dtype)
    assert torch.equal(compiled(lambda x: dropped(x, 0.3))(x), want(x, 0.3, OFFSET)[0])


def rows(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(dropped(x.exp() + bias, 0.25), -1)


@pytest.mark.parametrize("cols", [48, 45])
def test_masks_within_rows(cols: int, generator: Generator, in_vectors: None) -> None:
    """Of a kernel that goes along rows, and one whose rows are no multiple of four."""
    x, bias = torch.randn(16, cols), torch.randn(cols)
    expected, offset = want(x.exp() + bias, 0.25, OFFSET)
    torch.testing.assert_close(compiled(rows)(x, bias), torch.softmax(expected, -1))
    assert generator.offset == offset


def test_masks_that_follow_each_other_are_drawn_together(generator: Generator, in_vectors: None) -> None:
    x = torch.randn(40, 200)
    got = compiled(lambda x: (dropped(x.sin(), 0.1), dropped(x.cos()[:3], 0.5), dropped(x.exp(), 0.9)))(x)
    offset = OFFSET
    for mine, operand, p in zip(got, (x.sin(), x.cos()[:3], x.exp()), (0.1, 0.5, 0.9), strict=True):
        expected, offset = want(operand, p, offset)
        torch.testing.assert_close(mine, expected)
        assert torch.equal(mine == 0, expected == 0)
    assert generator.offset == offset and len(generator.calls) == 1 and generator.calls[0][1] == 0


def test_what_else_draws_comes_in_between(generator: Generator) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return dropped(x, 0.5), torch.rand(3), dropped(x, 0.5)

    compiled(function)(torch.randn(64))
    assert len(generator.calls) == 2


def test_the_backward_computes_the_mask_again(generator: Generator) -> None:
    """Two numbers are saved for it, whatever the size."""
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    with collect() as events:
        loss = compiled(lambda x, w: (dropped(torch.relu(x), 0.5) * w).sum())(x, w)
        loss.backward()
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    masks = [
        sum(isinstance(i, Compute) and i.op == "philox" for k in p.kernels for i in k.instructions()) for p in programs
    ]
    assert len(programs) == 2 and min(masks) >= 1
    booleans = [b for program in programs for b in program.buffers if b.spec.dtype is torch.bool]
    assert not booleans
    expected, _ = want(torch.ones(64, 64), 0.5, OFFSET)
    torch.testing.assert_close(w.grad, torch.relu(x.detach()) * expected)
    torch.testing.assert_close(x.grad, (x.detach() > 0) * w.detach() * expected)


def test_what_stays_a_call(generator: Generator) -> None:
    """Memory in another order, and what begins between sixteen bytes."""
    for x in (torch.randn(8, 8).t(), torch.randn(16)[1:13]):
        smelt.reset()
        with collect() as events:
            compiled(lambda x: dropped(x, 0.5))(x)
        programs = [event.subject for event in events if isinstance(event.subject, Program)]
        calls = [step.op for program in programs for step in program.steps if isinstance(step, Library)]
        if x.storage_offset():
            assert philox_draws.PHILOX_STATE in calls  # where it begins is seen when it runs
        else:
            assert torch.ops.aten.native_dropout.default in calls


def test_where_pytorch_draws_otherwise_it_runs_the_graph(generator: Generator) -> None:
    generator.reason = "a CUDA graph is recorded"
    with pytest.warns(SmeltWarning, match="a CUDA graph is recorded"):
        made = compiled(lambda x: dropped(x, 0.5))(torch.ones(64))
    assert generator.offset == OFFSET and set(made.tolist()) <= {0.0, 2.0}
    x = torch.ones(64, requires_grad=True)
    compiled(lambda x: dropped(x.sin(), 0.5))(x).sum().backward()
    assert x.grad is not None and generator.offset == OFFSET


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    recorded = [False]
    monkeypatch.setattr(philox_draws, "_is_recorded", lambda device: recorded[0])
    monkeypatch.setattr(philox_draws, "most_blocks", lambda device: 1056)
    monkeypatch.setattr(philox_draws, "moved", lambda device, words: pytest.fail("nothing is drawn"))
    whole = torch.zeros(8)
    for given, blocks, reason in (([], 864, "other dropout"), ([whole[1:]], 1056, "another place")):
        with pytest.raises(UnexpectedResult, match=reason):
            philox_draws._state(given, device, 4, blocks, 16)
    recorded[0] = True
    with pytest.raises(UnexpectedResult, match="recorded"):
        philox_draws._state([whole], device, 4, 1056, 16)


# A GPU is asked once how it draws.


class Host:
    """A generator of the host that counts as a GPU's does, and dropout that draws from it."""

    def __init__(self, broken: str = "") -> None:
        self.offset, self.broken, self.wide, self.calls = 8, broken == "inverted", broken == "wide", 0

    def initial_seed(self) -> int:
        return SEED

    def get_offset(self) -> int:
        return self.offset

    def get_state(self) -> int:
        return self.offset

    def set_state(self, state: int) -> None:
        self.offset = state

    def dropout(self, x: torch.Tensor, p: float, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        width = taken_at_once(x.numel(), x.dtype)
        while self.wide and x.numel() % (2 * width) == 0 and width < 8:
            width *= 2
        words, moved = drawn_by_threads(x.numel(), BLOCKS, width, SEED, self.offset)
        self.offset += moved
        kept = torch.tensor([word < threshold(1 - p, x.dtype) for word in words])
        return x * kept, kept.logical_not() if self.broken else kept


@pytest.mark.parametrize("broken", ["", "inverted", "wide"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_gpu_is_tried_once(broken: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(broken)
    monkeypatch.setattr(dropout_check, "default_generator", lambda device: host)
    monkeypatch.setattr(dropout_check, "most_blocks", lambda device: BLOCKS)
    monkeypatch.setattr(torch, "native_dropout", host.dropout)
    at_once = taken_at_once(16, dtype)
    if broken == "inverted" or (broken == "wide" and at_once < 8):  # no thread takes more than eight
        with pytest.warns(SmeltWarning, match="unknown way"):
            assert dropout_check._tried(torch.device("cpu"), dtype, at_once) is None
    else:
        assert dropout_check._tried(torch.device("cpu"), dtype, at_once) == BLOCKS and host.calls == 3
    assert host.offset == 8


# For a GPU that is not here.


def ahead(function: Any, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, target: str = "sm_90") -> Ahead:
    given = [replace(spec_like(shape, dtype), requires_grad=True) for shape in shapes]
    return compile_ahead(function, given, Options(target=target, check_specs=True))


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(F.gelu(x @ w), 0.1) @ w, 0.1) + x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_for_a_gpu_that_is_not_here(dtype: torch.dtype) -> None:
    found = ahead(block, (512, 1024), (1024, 1024), dtype=dtype)
    calls = [step.op for program in found.programs for step in program.steps if isinstance(step, Library)]
    assert torch.ops.aten.native_dropout.default not in calls and calls.count(philox_draws.PHILOX_STATE) == 1
    assert sum(isinstance(step, Launch) for step in found.forward.steps) == 2
    small = [saved for saved in found.plan.saved if saved.spec.dtype in (torch.int64, torch.bool)]
    assert sum(saved.spec.nbytes for saved in small) == 16


def test_kinds_of_gpus_that_nothing_is_known_of() -> None:
    found = ahead(block, (512, 1024), (1024, 1024), target="sm_87")
    calls = [step.op for program in found.programs for step in program.steps if isinstance(step, Library)]
    assert torch.ops.aten.native_dropout.default in calls


@assembled_here
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_elements_share_a_counter(dtype: torch.dtype, tmp_path: Path) -> None:
    """Twenty products of words for four elements, two or four times over, and no division."""
    found = ahead(lambda x: F.dropout(x, 0.1), (1 << 14, 1024), dtype=dtype)
    (kernel,) = found.forward.kernels
    ptx = build.assembly([kernel])
    products = ptx.count("mul.wide.u32") + ptx.count("mul.hi.u32") + ptx.count("mul.lo.s64")
    points = 4 * ptx.count("st.global.v4.b32") * (2 if dtype is torch.bfloat16 else 1)
    assert points and products <= 5 * points + 8 and "div." not in ptx and "rem." not in ptx
    ((registers, spilled),) = assembled(ptx, "sm_90", tmp_path).values()
    assert registers <= 80 and not spilled
