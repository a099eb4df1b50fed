"""Programs whose calls repeat become CUDA graphs by themselves: nobody notices but by the time a call takes."""

import copy
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt import _native
from tests.gpu.helpers import CUDA, assert_near, randn


def launches() -> int:
    """How many times graphs were launched, of all programs there are."""
    runners = [each for each in gc.get_objects() if type(each) is _native.Runner]
    return sum(runner.graphs.get("launched", 0) for runner in runners)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    smelt.reset()
    gc.collect()
    yield
    smelt.reset()


def graphed(model: Any, **how: Any) -> Any:
    return smelt.compile(model, options={"cuda_graphs": "always"} | how.pop("options", {}), **how)


class Block(nn.Module):
    """Library calls that write results, library calls that return them, and kernels."""

    def __init__(self, width: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(attended), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(x))), self.dropout, self.training)


def model(layers: int = 3, dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(dropout=dropout) for _ in range(layers)]).to(CUDA, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inference_is_replayed_with_new_inputs_and_fresh_outputs(dtype: torch.dtype) -> None:
    net = model(dtype=dtype).eval()
    compiled = graphed(net)
    kept, wanted = [], []
    with torch.no_grad():
        for seed in range(40):
            x = randn(2, 16, 64, dtype=dtype, seed=seed)
            kept.append(compiled(x))
            wanted.append(net(x))
        assert launches() > 5
        for mine, eager in zip(kept, wanted, strict=True):  # outputs of old calls never change
            assert_near(mine, eager, allowed=2e-2 if dtype is torch.bfloat16 else 1e-3)


def train(net: nn.Module, call: Callable[..., Any], steps: int, **how: Any) -> list[float]:
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(1)
    losses = []
    for step in range(steps):
        x = randn(2, 16, 64, seed=step)
        loss = (call(x) - x.roll(1, -1)).square().mean()
        loss.backward()
        if not how.get("accumulate") or step % 2:
            opt.step()
            opt.zero_grad(set_to_none=how.get("set_to_none", True))
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("how", [{}, {"set_to_none": False}, {"accumulate": True}], ids=str)
def test_training_is_replayed_and_computes_the_losses_of_eager(dropout: float, how: dict[str, Any]) -> None:
    eager, mine = model(dropout=dropout), model(dropout=dropout)
    wanted = train(eager, eager, 30, **how)
    losses = train(mine, graphed(mine), 30, **how)
    assert losses == pytest.approx(wanted, rel=2e-3)
    assert launches() > 5


def test_parameters_that_move_are_found() -> None:
    net = model().eval()
    compiled = graphed(net)
    x = randn(2, 16, 64)
    with torch.no_grad():
        for number in range(30):
            if number % 6 == 5:
                for parameter in net.parameters():
                    parameter.data = parameter.data * 1.01
            assert_near(compiled(x), net(x))
    assert launches() > 5


def test_what_changes_in_place_is_read_anew() -> None:
    net = model().eval()
    compiled = graphed(net)
    x = randn(2, 16, 64)
    with torch.no_grad():
        for _ in range(10):
            for parameter in net.parameters():
                parameter.mul_(1.01)
            x.add_(0.1)
            assert_near(compiled(x), net(x))
    assert launches() > 3


def test_streams_have_graphs_of_their_own() -> None:
    net = model().eval()
    compiled = graphed(net)
    streams = [torch.cuda.Stream() for _ in range(3)]
    with torch.no_grad():
        inputs = [randn(2, 16, 64, seed=seed) for seed in range(24)]
        wanted = [net(x) for x in inputs]
        torch.cuda.synchronize()
        results = []
        for number, x in enumerate(inputs):
            with torch.cuda.stream(streams[number % 3]):
                results.append(compiled(x))
        torch.cuda.synchronize()
        for mine, eager in zip(results, wanted, strict=True):
            assert_near(mine, eager)


def test_threads_share_a_compiled_model() -> None:
    net = model().eval()
    compiled = graphed(net)
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                for number in range(20):
                    x = randn(2, 16, 64, seed=seed + number)
                    torch.cuda.current_stream().synchronize()
                    assert_near(compiled(x), net(x))
        except BaseException as error:
            faults.append(error)

    with torch.no_grad():
        compiled(randn(2, 16, 64))
    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]


def test_states_that_calls_write_go_on() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)]
        return nn.Sequential(*layers).to(CUDA)

    eager, mine = build(), build()
    compiled = graphed(mine)
    for seed in range(12):
        x = randn(4, 3, 12, 12, seed=seed)
        assert_near(compiled(x), eager(x))
    assert_near(list(mine.buffers()), list(eager.buffers()))
    assert launches() > 3


def test_settings_of_pytorch_are_followed() -> None:
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).to(CUDA).eval()
    compiled = graphed(net)
    plain = smelt.compile(copy.deepcopy(net), options={"cuda_graphs": "never"})
    x = randn(512, 512)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        with torch.no_grad():
            for number in range(16):
                torch.backends.cuda.matmul.allow_tf32 = number % 8 >= 4
                assert torch.equal(compiled(x), plain(x))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_an_error_within_leaves_everything_as_it_was() -> None:
    compiled = graphed(lambda x, w: torch.softmax(x @ w, -1) @ w.t() + F.gelu(x @ w) @ w)
    w = randn(64, 64)
    for number in range(8):
        if number in (2, 5):
            with pytest.raises(RuntimeError):
                compiled(randn(8, 65), w)
        x = randn(8, 64, seed=number)
        assert_near(compiled(x, w), torch.softmax(x @ w, -1) @ w.t() + F.gelu(x @ w) @ w)


def test_random_numbers_of_the_library_are_drawn_anew() -> None:
    def noisy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w + torch.randn_like(x) + torch.rand(x.shape, device=x.device), -1) @ w

    compiled = smelt.compile(noisy, options={"eager_random": True, "cuda_graphs": "always"})
    x, w = randn(64, 64), randn(64, 64)
    for number in range(8):
        torch.manual_seed(number // 2)
        mine = compiled(x, w)
        torch.manual_seed(number // 2)
        assert_near(mine, noisy(x, w))


def test_dropout_of_kernels_and_of_the_library_draw_in_turn() -> None:
    def noisy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = F.dropout(x @ w, 0.5) + torch.rand_like(x)
        return F.dropout(torch.softmax(x, -1) @ w, 0.25)

    compiled = smelt.compile(noisy, options={"eager_random": True, "cuda_graphs": "always"})
    x, w = randn(64, 64), randn(64, 64)
    for number in range(8):
        torch.manual_seed(number // 2)
        mine = compiled(x, w)
        torch.manual_seed(number // 2)
        assert_near(mine, noisy(x, w))


def test_backward_twice_and_second_derivatives() -> None:
    net = model(2)
    compiled = graphed(net)
    for seed in range(10):
        x = randn(2, 16, 64, seed=seed)
        net.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        mine = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
        net.zero_grad()
        (2 * net(x).square().mean()).backward()
        assert_near(mine, [parameter.grad for parameter in net.parameters() if parameter.grad is not None])


class Pair:
    """A model in eager and its copy, compiled: every change is made to both."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.eager = model(2, dropout=0.1)
        self.mine = copy.deepcopy(self.eager)
        self.compiled = graphed(self.mine, dynamic=False, options={"eager_random": True})
        self.nets = (self.eager, self.mine)
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.5) for net in self.nets]
        self.hooks: list[Any] = []
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.side = torch.cuda.Stream()

    def calls(self) -> tuple[Callable[..., Any], ...]:
        return self.eager, self.compiled

    def change(self) -> None:
        """Now and then: moved parameters, another mode or precision, hooks, graphs that are freed."""
        chance = self.choose.random
        if chance() < 0.03:
            for net in self.nets:
                for parameter in net.parameters():
                    parameter.data = parameter.data.clone()
        if chance() < 0.1:
            for net in self.nets:
                net.train(not net.training)
        if chance() < 0.03:
            torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32
        if chance() < 0.03:
            if self.hooks:
                for hook in self.hooks:
                    hook.remove()
                self.hooks.clear()
            else:
                tensors = [next(net.parameters()) for net in self.nets]
                self.hooks += [tensor.register_hook(lambda gradient: gradient * 0.5) for tensor in tensors]
        if chance() < 0.02:
            _native.free_cuda_graphs()
        if chance() < 0.02:
            gc.collect()
            torch.cuda.empty_cache()

    def fail(self) -> None:
        with pytest.raises(RuntimeError):
            self.compiled(randn(2, 16, 65))

    def step(self, seed: int) -> None:
        chance = self.choose.random
        x = randn(self.choose.choice((1, 2)), 16, 64, seed=seed)
        stream = self.side if chance() < 0.2 else torch.cuda.current_stream()
        trains, twice, hooked, keeps = chance() < 0.6, chance() < 0.1, chance() < 0.1, chance() < 0.1
        needs_input_grad = chance() < 0.2
        stream.wait_stream(torch.cuda.current_stream())
        outs, grads = [], []
        with torch.cuda.stream(stream), torch.set_grad_enabled(trains):
            for call in self.calls():
                torch.manual_seed(seed)
                given = x.clone().requires_grad_(needs_input_grad and trains)
                out = call(given)
                outs.append(out.detach())
                if not trains:
                    continue
                if hooked:
                    out.register_hook(lambda gradient: gradient + 0.01)
                loss = out.square().mean()
                if twice:
                    loss.backward(retain_graph=True)
                loss.backward()
                grads.append(given.grad)
        torch.cuda.current_stream().wait_stream(stream)
        allowed = 1e-2 if torch.backends.cuda.matmul.allow_tf32 else 1e-3
        assert_near(outs[1], outs[0], allowed=allowed)
        if trains and needs_input_grad:
            assert_near(grads[1], grads[0], allowed=max(allowed, 1e-2))
        if keeps:
            self.kept.append((outs[1], outs[1].clone()))
        if trains and chance() < 0.5:  # else gradients are accumulated
            self.update(set_to_none=chance() < 0.7)

    def update(self, set_to_none: bool) -> None:
        """A step of the optimizers; then both have the same parameters, so that errors do not add up."""
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        with torch.no_grad():
            for mine, eager in zip(self.mine.parameters(), self.eager.parameters(), strict=True):
                assert_near(mine, eager, allowed=2e-2)
                mine.copy_(eager)
            eager_state, state = (list(optimizer.state.values()) for optimizer in self.optimizers)
            for wanted, moved in zip(eager_state, state, strict=True):
                moved["momentum_buffer"].copy_(wanted["momentum_buffer"])


@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_steps_of_everything_compute_what_eager_computes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random choices of sizes, streams, modes, precisions, moved parameters, hooks, accumulated and doubled gradients,
    exceptions, freed graphs and kept outputs."""
    monkeypatch.setattr(smelt.config, "cache_size_limit", 64)
    pair = Pair(random.Random(seed))
    tf32 = torch.backends.cuda.matmul.allow_tf32
    try:
        for step in range(500):
            pair.change()
            if pair.choose.random() < 0.02:
                pair.fail()
            pair.step(1000 * seed + step)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    for kept, wanted in pair.kept:  # later calls never write to results of earlier ones
        assert torch.equal(kept, wanted)
    assert launches() > 50  # few calls are like earlier ones, and graphs are freed ten times


def test_memory_of_graphs_is_freed_with_compiled_code() -> None:
    def build() -> None:
        net = model()
        compiled = graphed(net)
        for seed in range(8):
            compiled(randn(8, 64, 64, seed=seed)).square().mean().backward()
        assert launches() > 0

    def held() -> int:
        smelt.reset()
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    build()
    before = held()  # with workspaces of libraries, which PyTorch keeps
    for _ in range(3):
        build()
        assert launches() > 0
        assert held() <= before
        assert launches() == 0


def test_a_gpu_that_is_far_behind_gets_no_graphs() -> None:
    def heavy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.sin(x @ w) + torch.cos(x)
        return x

    compiled = smelt.compile(heavy)
    x, w = randn(4096, 4096), randn(4096, 4096)
    for _ in range(12):
        compiled(x, w)
    assert launches() == 0
    torch.cuda.synchronize()


def test_small_models_get_graphs_by_default() -> None:
    net = model().eval()
    compiled = smelt.compile(net)
    with torch.no_grad():
        for _ in range(12):
            x = randn(2, 16, 64)
            assert_near(compiled(x), net(x))
    assert launches() > 0


def test_graphs_can_be_turned_off() -> None:
    net = model().eval()
    compiled = smelt.compile(net, options={"cuda_graphs": "never"})
    with torch.no_grad():
        for _ in range(8):
            compiled(randn(2, 16, 64))
    assert launches() == 0
