"""Hooks that wait for gradients get them while the compiled backward still runs, and otherwise all is as in eager.

`seen` is an operator whose backward notes that it runs. Between two layers it tells how far the backward is.
"""

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smelt
from smelt.runtime.autograd import early_gradients

WIDTH = 64
EVENTS: list[Any] = []


@torch.library.custom_op("smelt_early::seen", mutates_args=())
def seen(x: torch.Tensor, layer: int) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("smelt_early::seen_backward", mutates_args=())
def seen_backward(x: torch.Tensor, layer: int) -> torch.Tensor:
    EVENTS.append(f"backward of {layer}")
    return x.clone()


@seen.register_fake
@seen_backward.register_fake
def _(x: torch.Tensor, layer: int) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.layer = inputs[1]


seen.register_autograd(lambda ctx, gradient: (seen_backward(gradient, ctx.layer), None), setup_context=_setup)


class Layers(nn.Module):
    """Four layers, and a note before each in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(seen(x, number)))
        return x.square().mean()


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(early_gradients, "SMALLEST_GROUP_BYTES", 1)
    EVENTS.clear()
    yield
    EVENTS.clear()


@pytest.fixture
def one_process() -> Iterator[None]:
    if dist.is_initialized():  # by a page's example
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def models(make: Callable[[], nn.Module] = Layers) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = make()
    return copy.deepcopy(model), model


def hooked(model: nn.Module, hook: Callable[[str, torch.Tensor], None]) -> None:
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda leaf, name=name: hook(name, leaf))  # type: ignore[misc]


def agree(model: nn.Module, eager: nn.Module) -> None:
    for (name, have), want in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (have.grad is None) == (want.grad is None), name
        if have.grad is not None and want.grad is not None:
            torch.testing.assert_close(have.grad, want.grad, msg=lambda text, name=name: f"{name}: {text}")


def x_of(seed: int = 0) -> torch.Tensor:
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def noted(name: str, leaf: torch.Tensor) -> None:
    EVENTS.append(name)


def test_a_hook_gets_its_gradient_before_the_backward_of_earlier_layers() -> None:
    eager, model = models()
    hooked(model, noted)
    compiled = smelt.compile(model, fullgraph=True)
    for step in range(4):
        EVENTS.clear()
        model.zero_grad(), eager.zero_grad()
        compiled(x_of(step)).backward()
        events = list(EVENTS)
        eager(x_of(step)).backward()
        agree(model, eager)
        assert sorted(events) == sorted([*dict(model.named_parameters()), *(f"backward of {n}" for n in range(4))])
        if step:  # the first compiles the backward, and learns its order
            for layer in range(1, 4):
                for name in ("weight", "bias"):
                    earlier = events.index(f"backward of {layer - 1}")
                    assert events.index(f"layers.{layer}.{name}") < earlier, events
    assert smelt.counters["eager_graphs"] == 0


def test_without_hooks_one_node_runs_the_backward() -> None:
    eager, model = models()
    compiled = smelt.compile(model, fullgraph=True)
    for _ in range(3):
        loss = compiled(x_of())
        loss.backward()
        eager(x_of()).backward()
        assert "Group" not in type(loss.grad_fn).__name__
    agree(model, eager)


def test_a_reduction_begins_while_earlier_layers_have_not_run(one_process: None) -> None:
    """The simulated wire: what DDP asks for, in order with the backward."""
    eager, model = models()
    parallel = DistributedDataParallel(smelt.compile(model, fullgraph=True), bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)

    def reduce(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        EVENTS.append(f"bucket {bucket.index()}")
        wire: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        wire.set_result(bucket.buffer())
        return wire

    parallel.register_comm_hook(None, reduce)
    for step in range(4):
        EVENTS.clear()
        parallel.zero_grad(), eager.zero_grad()
        parallel(x_of(step)).backward()
        events = list(EVENTS)
        eager(x_of(step)).backward()
        agree(model, eager)
    buckets = [event for event in events if event.startswith("bucket")]
    assert len(buckets) == 4, events
    assert events.index("bucket 0") < events.index("backward of 2"), events
    assert events.index("bucket 2") < events.index("backward of 0"), events


@pytest.mark.parametrize("options", [{"gradient_as_bucket_view": True}, {"static_graph": True}, {}])
def test_accumulation_without_reduction(one_process: None, options: dict[str, Any]) -> None:
    eager, model = models()
    parallel = DistributedDataParallel(smelt.compile(model), bucket_cap_mb=1, **options)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, eager)]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        first = "static_graph" in options and step == 0  # which must be reduced, in eager too
        with nullcontext() if first else parallel.no_sync():
            parallel(x_of(step)).backward()
        parallel(x_of(step + 10)).backward()
        eager(x_of(step)).backward()
        eager(x_of(step + 10)).backward()
        agree(model, eager)
        for optimizer in optimizers:
            optimizer.step()


class Partly(nn.Module):
    """One layer is not used, another is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.shared, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.shared(torch.tanh(self.shared(x)))).square().mean()  # type: ignore[no-any-return]


def test_shared_and_unused_parameters(one_process: None) -> None:
    eager, model = models(Partly)
    parallel = DistributedDataParallel(smelt.compile(model), find_unused_parameters=True)
    calls: list[str] = []
    hooked(model, lambda name, leaf: calls.append(name))
    for step in range(4):
        calls.clear()
        parallel.zero_grad(), eager.zero_grad()
        parallel(x_of(step)).backward()
        eager(x_of(step)).backward()
        agree(model, eager)
        assert sorted(calls) == ["last.bias", "last.weight", "shared.bias", "shared.weight"]


def test_an_exception_in_a_hook_ends_the_backward() -> None:
    eager, model = models()
    compiled = smelt.compile(model)
    fails = False

    def hook(name: str, leaf: torch.Tensor) -> None:
        if fails and name == "layers.2.weight":
            raise ArithmeticError(name)

    hooked(model, hook)
    for _ in range(2):
        compiled(x_of()).backward()
    fails = True
    model.zero_grad()
    EVENTS.clear()
    with pytest.raises(ArithmeticError, match=r"layers\.2\.weight"):
        compiled(x_of()).backward()
    assert "backward of 0" not in EVENTS
    assert model.layers[3].weight.grad is not None and model.layers[0].weight.grad is None  # type: ignore[index,union-attr]
    fails = False
    model.zero_grad()
    compiled(x_of()).backward()
    eager(x_of()).backward()
    agree(model, eager)


def test_a_retained_graph_runs_again() -> None:
    eager, model = models()
    hooked(model, noted)
    compiled = smelt.compile(model)
    compiled(x_of()).backward()
    model.zero_grad()
    for one in (compiled, eager):
        loss = one(x_of())
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    agree(model, eager)


def test_gradients_of_some_inputs_leave_nothing_behind() -> None:
    eager, model = models()
    hooked(model, noted)
    compiled = smelt.compile(model)
    compiled(x_of()).backward()
    for layer in (3, 0):
        weights = [each.layers[layer].weight for each in (model, eager)]  # type: ignore[index]
        EVENTS.clear()
        (have,) = torch.autograd.grad(compiled(x_of()), [weights[0]])
        assert ("backward of 1" in EVENTS) == (layer == 0), EVENTS
        (want,) = torch.autograd.grad(eager(x_of()), [weights[1]])
        torch.testing.assert_close(have, want)
    x, y = x_of(), x_of()
    torch.testing.assert_close(torch.autograd.grad(compiled(x), [x]), torch.autograd.grad(eager(y), [y]))


class Smooth(nn.Module):
    """Two layers that can be differentiated twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x)))).square().mean()


def test_second_derivatives() -> None:
    eager, model = models(Smooth)
    hooked(model, noted)
    compiled = smelt.compile(model)
    compiled(x_of()).backward()
    model.zero_grad()
    for one in (compiled, eager):
        x = x_of()
        (gradient,) = torch.autograd.grad(one(x), [x], create_graph=True)
        gradient.square().sum().backward()
    agree(model, eager)


def test_an_optimizer_in_hooks_takes_the_steps_of_eager() -> None:
    """It writes a parameter while the backward of earlier layers is still to run."""
    pair = models()
    optimizers = [
        {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()} for model in pair
    ]

    def stepping(by_leaf: dict[nn.Parameter, torch.optim.Optimizer]) -> Callable[[str, Any], None]:
        def step(name: str, leaf: Any) -> None:
            by_leaf[leaf].step()
            leaf.grad = None

        return step

    for model, by_leaf in zip(pair, optimizers, strict=True):
        hooked(model, stepping(by_leaf))
    compiled = smelt.compile(pair[1])
    for step in range(4):
        compiled(x_of(step)).backward()
        pair[0](x_of(step)).backward()
    for want, have in zip(pair[0].parameters(), pair[1].parameters(), strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("moves", [False, True])
def test_a_hook_that_writes_what_the_backward_still_reads_is_an_error(moves: bool) -> None:
    _, model = models()
    writes = False
    other: Any = model.layers[1].weight  # type: ignore[index]

    def hook(name: str, leaf: torch.Tensor) -> None:
        if writes and name == "layers.3.weight":
            if moves:
                other.data = torch.zeros(WIDTH, WIDTH)
            else:
                with torch.no_grad():
                    other.zero_()

    hooked(model, hook)
    compiled = smelt.compile(model)
    for _ in range(2):
        compiled(x_of()).backward()
    writes = True
    with pytest.raises(RuntimeError, match="needed for gradient computation"):
        compiled(x_of()).backward()


class TwoLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.left, self.right = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.shared(x))
        return self.left(h).square().mean(), self.right(h).square().mean()


@pytest.mark.parametrize("losses", [(0,), (1,), (0, 1)])
def test_gradients_that_only_some_losses_reach(losses: tuple[int, ...]) -> None:
    eager, model = models(TwoLosses)
    calls: list[str] = []
    hooked(model, lambda name, leaf: calls.append(name))
    compiled = smelt.compile(model)
    for step in range(3):
        calls.clear()
        model.zero_grad(), eager.zero_grad()
        for one in (compiled, eager):
            results = one(x_of(step))
            sum(results[loss] for loss in losses).backward()
        agree(model, eager)
        sides = [side for loss, side in enumerate(("left", "right")) if loss in losses]
        assert sorted(calls) == [f"{layer}.{kind}" for layer in [*sides, "shared"] for kind in ("bias", "weight")]


def test_two_backwards_one_after_the_other_share_what_is_saved() -> None:
    eager, model = models(TwoLosses)
    hooked(model, lambda name, leaf: None)
    compiled = smelt.compile(model)
    for _ in range(3):
        model.zero_grad(), eager.zero_grad()
        for one in (compiled, eager):
            left, right = one(x_of())
            left.backward(retain_graph=True)
            right.backward()
        agree(model, eager)


def test_changing_sizes() -> None:
    eager, model = models()
    hooked(model, noted)
    compiled = smelt.compile(model)
    for rows in (4, 7, 9, 7, 4, 9, 9):
        model.zero_grad(), eager.zero_grad()
        EVENTS.clear()
        x = torch.randn(rows, WIDTH)
        compiled(x).backward()
        events = list(EVENTS)
        eager(x).backward()
        agree(model, eager)
    assert events.index("layers.3.weight") < events.index("backward of 1"), events


def test_a_hook_that_frees_gradients_keeps_the_peak_low() -> None:
    """Gradients that leave early need not be there at the same time."""
    _, model = models()
    alive: list[int] = []

    def hook(name: str, leaf: torch.Tensor) -> None:
        leaf.grad = None
        gc.collect()
        ones = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.shape == (WIDTH, WIDTH)]
        alive.append(len(ones))

    hooked(model, hook)
    compiled = smelt.compile(model)
    for _ in range(3):
        alive.clear()
        compiled(x_of()).backward()
    assert max(alive) <= 1, alive
