"""How much memory a whole step takes, and that what is recomputed or freed early changes nothing."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.fuse.memory_plan import lifetimes, peak, plan, plan_memory
from smelt.ir.kernel import Accumulate
from smelt.ir.program import Launch, Operand, Place, Program
from smelt.ops.decompose import products
from smelt.pipeline.sizes import template
from smelt.runtime.program import flatten
from tests.targets import HOST, chosen, seeded, there

# A GPU updates small parameters together, in one launch, and keeps their gradients until then; not those of a megabyte.
WIDTH, CHANNELS = (256, 64) if chosen == (HOST, HOST) else (640, 192)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()
    torch.manual_seed(0)


@there()
def _data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(seed))


class Gated(nn.Module):
    """Layers of which the backward needs much that is cheap to recompute."""

    @there()
    def __init__(self, width: int, inner: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.gates = nn.ModuleList(nn.Linear(width, inner) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, inner) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(inner, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gate, up, down in zip(self.gates, self.ups, self.downs, strict=True):
            x = x + down(nn.functional.silu(gate(x)) * up(x))
        return x


def _step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss


def _twice(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    first: torch.Tensor = model(x).square().mean()
    first.backward()
    second: torch.Tensor = model(x + 1).abs().mean()
    second.backward()
    opt.step()
    return first + second


def _alike(make: Callable[[], nn.Module], step: Callable[..., torch.Tensor], x: torch.Tensor) -> list[Program]:
    """Train two copies; all that remains is equal. Returns the programs."""
    ours, theirs = make(), make()
    mine, plain = (torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9) for model in (ours, theirs))
    compiled = smelt.compile(step, fullgraph=True)
    with collect() as events:
        for _ in range(3):
            torch.testing.assert_close(compiled(ours, mine, x), step(theirs, plain, x))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
            assert one.grad.untyped_storage().nbytes() == one.nbytes
    return [event.subject for event in events if isinstance(event.subject, Program)]


def _recomputing(program: Program) -> list[Launch]:
    """The kernels that compute something again, into memory of its own or for themselves alone."""
    return [step for step in program.steps if isinstance(step, Launch) and "_recomputed" in step.kernel.name]


def test_what_is_cheap_is_recomputed_in_the_backward() -> None:
    program = _alike(lambda: Gated(32, 512, 4), _step, _data(64, 32))[-1]
    assert len(_recomputing(program)) >= 4
    lives, inner = lifetimes(program), 64 * 512 * 4
    middle = len(program.steps) // 3  # the backward is twice the forward
    held = [b.name for b in program.buffers if b.spec.nbytes == inner and lives[b.name][0] < middle < lives[b.name][1]]
    assert len(held) <= 2 * 4 + 3  # of each layer what comes out of two products, and a few of the layer at work


class Normed(nn.Module):
    """Layers as in GPT-2, without their attention."""

    @there()
    def __init__(self, width: int, inner: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, inner) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(inner, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(nn.functional.gelu(up(norm(x)), approximate="tanh"))
        return x


@pytest.mark.skipif(chosen != (HOST, HOST), reason="it chooses a target of its own")
def test_norms_are_recomputed_where_their_gradients_are() -> None:
    """A layer's norm is recomputed for the gradient of a weight in the kernel of its own gradient, which reads the same
    values: that of its input, of its weight and bias, and of the bias below."""
    model, x = Normed(64, 256, 4), _data(128, 64)
    wanted = copy.deepcopy(model)
    compiled = smelt.compile(_step, fullgraph=True, options={"target": "simt-host"})
    with collect() as events:
        for call, trained in ((compiled, model), (_step, wanted)):
            call(trained, torch.optim.SGD(trained.parameters(), lr=1e-2), x)
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    program = [event.subject for event in events if isinstance(event.subject, Program)][-1]
    counts = [sum(isinstance(i, Accumulate) for i in step.kernel.instructions()) for step in _recomputing(program)]
    assert counts == [3, 3, 3, 2], counts  # below the first layer there is none


class Head(nn.Module):
    """Tokens, a norm, and logits for a vocabulary that is larger than all else."""

    @there()
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.norm = nn.Embedding(tokens, width), nn.LayerNorm(width)
        self.logits = nn.Linear(width, tokens, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(self.embedding(ids))).float()  # type: ignore[no-any-return]


def _classify(model: nn.Module, opt: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(ids), ids.roll(-1))
    loss.backward()
    opt.step()
    return loss


def test_probabilities_are_recomputed_where_the_backward_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward keeps the logits in 16 bits and two numbers a row, where products of 16 bits stay so."""
    monkeypatch.setattr(products, "slow_products", lambda dtype: False)
    ids, model = _data(64).mul(100).long().remainder(5000), Head(5000, 16).bfloat16()
    wanted = copy.deepcopy(model)
    compiled = smelt.compile(_classify, fullgraph=True)
    with collect() as events:
        for call, trained in ((compiled, model), (_classify, wanted)):
            loss = call(trained, torch.optim.SGD(trained.parameters(), lr=1e-2), ids)
            torch.testing.assert_close(loss, nn.functional.cross_entropy(Head(5000, 16).bfloat16()(ids), ids.roll(-1)))
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    program = [event.subject for event in events if isinstance(event.subject, Program)][-1]
    held = [buffer.name for buffer in program.buffers if buffer.spec.nbytes == 64 * 5000 * 4]
    assert len(held) <= 1, held


@there()
def _classifier() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(16, 5)


def test_what_waits_for_a_value_stays_behind_it(recwarn: pytest.WarningsRecorder) -> None:
    """Values of the second backward wait for a number that is moved to its first reader."""
    labels = _data(6).long().abs()

    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        first = nn.functional.cross_entropy(model(x), labels) / 2
        first.backward()
        second = nn.functional.cross_entropy(model(x.flip(0)), labels) * 0.3
        second.backward()
        opt.step()
        return first + second

    _alike(_classifier, step, _data(6, 16))
    assert not [str(each.message) for each in recwarn if "SM020" in str(each.message)]


def test_gradients_get_the_memory_of_what_the_backward_has_read() -> None:
    program = _alike(lambda: Gated(128, 512, 4), _step, _data(256, 128))[-1]
    results = sum(b.spec.nbytes for b in program.buffers if b.place is Place.FRESH and b.name not in _dying(program))
    held = sum(b.spec.nbytes for b in program.buffers if b.name in _dying(program))
    assert held > 4_000_000
    assert peak(program) < 0.8 * (results + held + program.arena_bytes)


def _let_go(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    """Nobody keeps the gradients of this one."""
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss


def _clipped(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    return loss


_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


class Images(nn.Module):
    @there()
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.parts = nn.Sequential(*[nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x).relu()
        return x


def _program(step: Callable[..., torch.Tensor], model: Callable[[], nn.Module], kind: str, x: torch.Tensor) -> Program:
    """The program of a step from the second on, after it was found to do what eager does."""
    ours, theirs = model(), model()
    mine, plain = _OPTIMIZERS[kind](ours.parameters()), _OPTIMIZERS[kind](theirs.parameters())
    compiled = smelt.compile(step, fullgraph=True)
    with collect() as events:
        for _ in range(3):
            torch.testing.assert_close(compiled(ours, mine, x), step(theirs, plain, x))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    return [event.subject for event in events if isinstance(event.subject, Program)][-1]


def _held_at_once(program: Program, size: int) -> int:
    """How many values of so many bytes there are besides inputs, at most."""
    lives = lifetimes(program)
    made = [lives[b.name] for b in program.buffers if b.place is not Place.INPUT and b.spec.nbytes == size]
    return max(sum(first <= step <= last for first, last in made) for step in range(len(program.steps)))


@pytest.mark.parametrize("kind", _OPTIMIZERS)
def test_gradients_that_nobody_keeps_never_exist_all_at_once(kind: str) -> None:
    @there()
    def layers() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])

    x, size = _data(32, WIDTH), WIDTH * WIDTH * 4
    assert _held_at_once(_program(_clipped, layers, kind, x), size) == 6
    program = _program(_let_go, layers, kind, x)
    assert _held_at_once(program, size) <= 1  # none, where the kernel of a gradient has the update in it
    assert peak(program) < 3 * size
    assert all(output is None for output in program.outputs[1:])  # parameters and state are written where they are


def test_gradients_of_convolutions_never_exist_all_at_once() -> None:
    program = _program(_let_go, Images, "SGD", _data(1, CHANNELS, 4, 4))
    assert _held_at_once(program, CHANNELS * CHANNELS * 9 * 4) <= 2
    assert all(output is None for output in program.outputs[1:])


def test_a_step_that_ends_among_its_updates_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out in a product: what is updated by then was updated once, and who called is told."""
    left = [10**9]

    def product(*args: Any, **named: Any) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("no memory is left")
        return torch.mm(*args, **named)

    monkeypatch.setattr(flatten.Flattener, "_native", lambda self, step, named: None)
    monkeypatch.setitem(flatten.BINDINGS, torch.ops.aten.mm.out, product)

    @there()
    def layers() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])

    ours, theirs = layers(), layers()
    mine, plain = (torch.optim.SGD(model.parameters(), lr=1e-2) for model in (ours, theirs))
    compiled = smelt.compile(_let_go, fullgraph=True)
    x = _data(32, WIDTH)
    for _ in range(2):
        before = left[0]
        torch.testing.assert_close(compiled(ours, mine, x), _let_go(theirs, plain, x))
    products = before - left[0]
    old = [(p.detach().clone(), p._version) for p in ours.parameters()]
    _let_go(theirs, plain, x)
    left[0] = products - 1  # the last one fails
    with pytest.raises(RuntimeError, match="no memory is left"):
        compiled(ours, mine, x)
    updated = 0
    for (value, version), one, other in zip(old, ours.parameters(), theirs.parameters(), strict=True):
        assert one._version > version  # who saved it for a backward learns that it may have changed
        if not torch.equal(one, value):
            torch.testing.assert_close(one, other)
            updated += 1
    assert 0 < updated < len(old)


def test_memory_is_planned_for_sizes_that_vary_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[Program, Program]] = []

    def noting(program: Program, lives: Any = None) -> Program:
        bound.append((program, plan(program, lives)))
        return bound[-1][1]

    monkeypatch.setattr(template, "plan", noting)
    ours, theirs = Gated(128, 512, 4), Gated(128, 512, 4)
    mine, plain = (torch.optim.SGD(model.parameters(), lr=1e-2) for model in (ours, theirs))
    compiled = smelt.compile(_step, fullgraph=True)
    for rows in (256, 320, 288):
        x = _data(rows, 128)
        torch.testing.assert_close(compiled(ours, mine, x), _step(theirs, plain, x))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert len(bound) >= 2
    for program, planned in bound:
        assert peak(planned) < 0.8 * peak(plan_memory(program))


def _dying(program: Program) -> set[str]:
    returned = {output.buffer for output in program.outputs if isinstance(output, Operand)}
    return {b.name for b in program.buffers if b.place is Place.FRESH and b.name not in returned}


def test_two_backwards_in_one_step() -> None:
    program = _alike(lambda: Gated(16, 256, 2), _twice, _data(64, 16))[-1]
    assert len(_recomputing(program)) >= 4


def test_masks_are_kept_where_they_are_less_than_what_they_are_of() -> None:
    @there()
    def make() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Dropout(0.0), nn.Linear(512, 4))

    _alike(make, _step, _data(64, 32))


class Odd(nn.Module):
    """A parameter nobody uses, one of another dtype, and one that is part of a larger tensor."""

    @there()
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.unused = nn.Parameter(torch.randn(3))
        self.wide = nn.Parameter(torch.randn(8, dtype=torch.float64))
        self.part = nn.Parameter(torch.randn(4, 8)[1:3, ::2])
        self.inner = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(x * self.wide.float()).sigmoid()
        return hidden @ self.part.t()


def test_odd_parameters() -> None:
    ours, theirs = Odd(), Odd()
    mine, plain = (torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9) for model in (ours, theirs))
    compiled = smelt.compile(_without_clipping, fullgraph=True)
    x = _data(16, 8)
    for _ in range(3):
        torch.testing.assert_close(compiled(ours, mine, x), _without_clipping(theirs, plain, x))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
        assert (one.grad is None) == (other.grad is None)
    assert ours.unused.grad is None


def _without_clipping(model: Any, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    opt.step()
    return loss


def test_parameters_in_one_block_of_memory() -> None:
    """Each is written, and none in the memory of another: PyTorch runs such a step, and it is eager's."""

    @there()
    def make() -> tuple[nn.Module, torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        place = 0
        for p in model.parameters():
            p.data = flat[place : place + p.numel()].view(p.shape)
            place += p.numel()
        return model, flat

    (ours, flat), (theirs, other) = make(), make()
    mine, plain = (torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9) for model in (ours, theirs))
    compiled = smelt.compile(_step)
    x = _data(16, 8)
    for _ in range(3):
        torch.testing.assert_close(compiled(ours, mine, x), _step(theirs, plain, x))
    torch.testing.assert_close(flat, other)


def test_gradients_that_somebody_keeps_stay_as_they_were() -> None:
    model = Gated(32, 256, 2)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = smelt.compile(_step, fullgraph=True)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for number in range(4):
        compiled(model, opt, _data(64, 32, seed=number))
        kept += [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    for gradient, then in kept:
        assert torch.equal(gradient, then)
