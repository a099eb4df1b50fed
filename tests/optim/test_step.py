"""A whole training step in one compiled function: zero_grad, forward, backward, clipping and update, in one graph."""

import contextlib
import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.optim import lr_scheduler, swa_utils

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.events import collect
from smelt.ir.program import Library, Program
from tests.targets import device_type, seeded, there

BACKENDS = ["eager", "aot_eager", "llvm"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


@there()
def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss


@there()
def _batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = seeded(number)
    return torch.randn(5, 8, generator=generator), torch.randint(0, 4, (5,), generator=generator)


def _same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for each, its in zip(one, other, strict=True):
            _same(each, its)
    else:
        torch.testing.assert_close(one, other)


def train_alike(
    optimizer: Callable[[Any], torch.optim.Optimizer],
    backend: str,
    step: Callable[..., torch.Tensor] = _step,
    steps: int = 5,
    each: Callable[[torch.optim.Optimizer, int], None] = lambda opt, number: None,
) -> dict[str, int]:
    """Train two copies, one of them compiled; all that remains is equal. Returns the counters."""
    ours, theirs = _model(), _model()
    mine, plain = optimizer(ours.parameters()), optimizer(theirs.parameters())
    compiled = smelt.compile(step, fullgraph=True, backend=backend)
    for number in range(steps):
        x, y = _batch(number)
        torch.testing.assert_close(compiled(ours, mine, x, y), step(theirs, plain, x, y))
        each(mine, number)
        each(plain, number)
    _same(list(ours.parameters()), list(theirs.parameters()))
    _same([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
    _same(mine.state_dict(), plain.state_dict())
    return dict(smelt.counters)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_with_sgd_is_one_graph(backend: str, momentum: float) -> None:
    counters = train_alike(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=momentum), backend)
    assert counters["graphs"] == 2, "one, and one for the state that the first step makes"
    assert counters.get("graph_breaks", 0) == 0 and counters.get("eager_graphs", 0) == 0


def test_a_second_backward_of_the_loss_raises_as_in_eager() -> None:
    model = _model()
    compiled = smelt.compile(_step, fullgraph=True, backend="aot_eager")
    loss = compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), *_batch(0))
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_a_step_with_adam_is_one_graph_whatever_the_rate(backend: str, kind: Any) -> None:
    def schedule(opt: torch.optim.Optimizer, number: int) -> None:
        if number >= 2:
            opt.param_groups[0]["lr"] *= 0.9

    counters = train_alike(lambda parameters: kind(parameters, lr=0.01), backend, steps=6, each=schedule)
    assert counters["graphs"] == 2, "neither the number of steps nor the rate is compiled in"
    assert counters.get("graph_breaks", 0) == 0 and counters.get("eager_graphs", 0) == 0
    assert counters.get("sizes_compiled", 2) == 2


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("foreach", [None, True], ids=["as chosen", "on lists"])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop", "NAdam", "Adadelta"])
def test_making_state_and_finding_it_is_one_graph(kind: str, foreach: bool | None, backend: str) -> None:
    """The first step makes state before the graph, which is given it: the second step has the same graph."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return getattr(torch.optim, kind)(parameters, lr=0.01, foreach=foreach)  # type: ignore[no-any-return]

    counters = train_alike(make, backend)
    assert counters["graphs"] == 2
    if backend == "llvm":
        assert counters["joint_graphs"] == 1, "the stages run once"
    smelt.reset()
    with collect() as events:
        train_alike(make, backend)
    first, second = [_without_names(event.text) for event in events if event.channel == "graph"]
    assert first == second


def _without_names(text: str) -> str:
    """A graph by the numbers of its values. A function may have the name of one of them: it has a bracket."""
    text = re.sub(r": number .*? = ", ": number = ", text)
    words = re.findall(r"\w+(?:\()?|\W+", text)
    names = {line.split(":")[0].strip() for line in text.splitlines()[1:] if ": " in line}
    numbers: dict[str, str] = {}
    return "".join(numbers.setdefault(word, f"%{len(numbers)}") if word in names else word for word in words)


@pytest.mark.skipif(device_type() == "cuda", reason="an index out of range ends what a process does on a GPU")
def test_state_that_a_failing_step_began_with_is_not_kept() -> None:
    model = _model()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    compiled = smelt.compile(_step, fullgraph=True)
    x, y = _batch(0)
    with pytest.raises(IndexError):
        compiled(model, opt, x, torch.full_like(y, 9))
    assert not opt.state_dict()["state"]
    for number in range(3):
        compiled(model, opt, *_batch(number))
    assert all(int(state["step"]) == 3 for state in opt.state_dict()["state"].values())


def test_state_is_made_anew_for_each_optimizer() -> None:
    """One entry, called for optimizers that have none yet: their tensors are their own."""
    compiled = smelt.compile(_step, fullgraph=True)
    kept = []
    for number in range(2):
        model = _model()
        opt = torch.optim.Adam(model.parameters(), lr=0.01)
        compiled(model, opt, *_batch(0))
        kept.append([state["exp_avg"] for state in opt.state.values()])
        opt.state.clear()
        compiled(model, opt, *_batch(number))
        kept.append([state["exp_avg"] for state in opt.state.values()])
    places = [tensor.data_ptr() for tensors in kept for tensor in tensors]
    assert len(set(places)) == len(places)


def test_parameters_are_updated_where_they_are() -> None:
    model = _model()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    compiled = smelt.compile(_step, fullgraph=True)
    with collect() as events:
        for number in range(3):
            compiled(model, opt, *_batch(number))
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    handed_back = [operand.shape for operand in programs[-1].outputs if operand is not None]
    assert len(handed_back) == 5, "the loss and four gradients; what Adam keeps and the weights are written in place"


def test_a_write_in_place_is_seen_by_autograd() -> None:
    """A weight that was saved for a backward and then stepped is noticed, as in eager."""

    def step(opt: torch.optim.Optimizer) -> None:
        opt.step()

    model = _model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model(_batch(0)[0]).sum().backward()
    loss = model(_batch(1)[0]).square().sum()
    smelt.compile(step, fullgraph=True)(opt)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_operators_on_lists_become_kernels(kind: Any) -> None:
    counters = train_alike(lambda parameters: kind(parameters, lr=0.01, foreach=True), "llvm")
    assert counters["graphs"] == 2 and counters.get("eager_graphs", 0) == 0


def test_norms_of_gradients_are_kernels() -> None:
    with collect() as events:
        train_alike(lambda parameters: torch.optim.SGD(parameters, lr=0.1), "llvm", steps=2)
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    calls = {str(step.op) for step in programs[-1].steps if isinstance(step, Library)}
    assert calls and not any("norm" in call for call in calls)


def test_a_share_that_the_graph_computes() -> None:
    """Adafactor averages by a share that depends on its count of steps, which is a tensor."""
    counters = train_alike(lambda parameters: torch.optim.Adafactor(parameters, lr=0.01), "llvm")
    assert counters["graphs"] == 2 and counters.get("eager_graphs", 0) == 0


def _accumulating(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    total = x.new_zeros(())
    for part, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
        loss = F.cross_entropy(model(part), wanted) / 2
        loss.backward()
        total = total + loss.detach()
    opt.step()
    return total


def _zeroing(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad(set_to_none=False)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    opt.step()
    return loss


def _clearing(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.detach()


def _penalizing(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + 0.1 * sum(slope.square().sum() for slope in slopes)).backward()
    opt.step()
    return loss


def _twice(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
    return loss


def _by_closure(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return opt.step(closure)  # type: ignore[return-value]


def _by_hand(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    parameters = list(model.parameters())
    loss = F.cross_entropy(model(x), y)
    for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = slope
    opt.step()
    return loss


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [_accumulating, _zeroing, _clearing, _penalizing, _twice, _by_closure, _by_hand])
def test_other_steps_are_one_graph(step: Any, backend: str) -> None:
    counters = train_alike(lambda parameters: torch.optim.AdamW(parameters, lr=0.01), backend, step)
    assert counters["graphs"] == 2 and counters.get("graph_breaks", 0) == 0 and counters.get("eager_graphs", 0) == 0


def test_a_scheduler_and_an_average_are_part_of_the_step() -> None:
    def train(compiled: bool) -> tuple[Any, ...]:
        model = _model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
        average = [parameter.detach().clone() for parameter in model.parameters()]

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            schedule.step()
            with torch.no_grad():
                for kept, parameter in zip(average, model.parameters(), strict=False):
                    kept.lerp_(parameter, 0.1)
            return loss

        run = smelt.compile(step, fullgraph=True) if compiled else step
        losses = [run(*_batch(number)) for number in range(6)]
        return losses, average, list(model.parameters()), schedule.get_last_lr(), schedule.last_epoch

    _same(train(True), train(False))
    assert smelt.counters["graphs"] <= 3


_SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 4),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [3, 8]),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=6),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, 12),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 5),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=14),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=5),
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda epoch: 0.9**epoch),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt, 0.1, 3), lr_scheduler.ExponentialLR(opt, 0.9)], [5]
    ),
}


@pytest.mark.parametrize("name", _SCHEDULES)
def test_schedulers_are_part_of_the_step(name: str) -> None:
    """They count, compare and round numbers that are others at each step: none of that is compiled in."""

    def train(compiled: bool) -> tuple[Any, ...]:
        model = _model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = _SCHEDULES[name](opt)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            schedule.step()
            return loss

        run = smelt.compile(step, fullgraph=True, backend="aot_eager") if compiled else step
        losses = [run(*_batch(number)) for number in range(13)]
        settings = [{name: value for name, value in group.items() if name != "params"} for group in opt.param_groups]
        return losses, list(model.parameters()), settings, schedule.get_last_lr(), schedule.last_epoch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # SequentialLR warns of itself
        warnings.simplefilter("error", SmeltWarning)
        _same(train(True), train(False))
    assert smelt.counters["graphs"] < 8, "for what the schedule does differently, not for each step"


class _Counting(torch.optim.Optimizer):
    """Keeps a number of Python's in its state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["times"], state["sum"] = 0, torch.zeros_like(parameter)
                state["times"] += 1
                state["sum"].mul_(0.5).add_(parameter.grad)
                parameter.add_(state["sum"], alpha=-group["lr"] / state["times"])


_SCALED: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1),
    "lists": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "counting": _Counting,
    "fused Adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "fused SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
    "fused Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, fused=True),
}


@pytest.mark.parametrize("infinite", [(4,), (0, 1, 4)], ids=["later", "first"])
@pytest.mark.parametrize("name", _SCALED)
def test_a_scaler_skips_steps_with_infinite_gradients(name: str, infinite: tuple[int, ...]) -> None:
    """State that the first step would make is not there after it has been skipped. Fused updates skip themselves."""
    if name == "fused Adagrad" and device_type() == "cuda":
        pytest.skip("PyTorch has no fused Adagrad on this device")

    def train(compiled: bool, unscaled: bool) -> list[Any]:
        model = _model()
        opt = _SCALED[name](model.parameters())
        scaler = torch.amp.GradScaler(device_type(), init_scale=8.0, growth_interval=2)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if unscaled:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            return loss

        run = smelt.compile(step, fullgraph=True) if compiled else step
        found: list[Any] = []
        for number in range(7):
            x, y = _batch(number)
            if number in infinite:
                x[0, 0] = float("inf")
            loss = run(x, y)
            state = copy.deepcopy(opt.state_dict()["state"])
            found += [None if number in infinite else loss, state, scaler.get_scale()]
        return [*found, list(model.parameters())]

    for unscaled in (True, False):
        smelt.reset()
        _same(train(True, unscaled), train(False, unscaled))
        assert smelt.counters["graphs"] <= 4


class _Recorded:
    """A backend that keeps what it is given, and lets PyTorch run it."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs.append(module)
        return module.forward


def _elsewhere(kind: Any, steps: str) -> torch.optim.Optimizer:
    """An optimizer some steps on, with parameters on a device that is not the host: one without data will do."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6))
    opt = kind(model.parameters(), foreach=True)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    opt.step()
    moved: torch.optim.Optimizer = kind(model.to("meta").parameters(), foreach=True)
    for param, known in zip(model.parameters(), opt.state.values(), strict=True):
        param.grad = torch.ones_like(param)
        moved.state[param] = {
            name: each.to(steps if name == "step" or not each.dim() else "meta") for name, each in known.items()
        }
    return moved


@pytest.mark.parametrize("steps", ["cpu", "meta"])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "Adamax"])
def test_a_step_on_another_device_is_one_graph_wherever_steps_are_counted(kind: str, steps: str) -> None:
    """They are counted on the default device. The device here has no data, so a number of it raises when it runs."""
    opt, seen = _elsewhere(getattr(torch.optim, kind), steps), _Recorded()
    with pytest.raises(RuntimeError, match="meta tensors") if steps == "meta" else contextlib.nullcontext():
        smelt.compile(opt.step, backend=seen)()
    assert len(seen.graphs) == 1 and smelt.counters["graph_breaks"] == 0


def test_a_count_on_another_device_decides_as_one_on_the_host_does() -> None:
    """An average of a model on a GPU counts its updates there. What has no data cannot be asked for it."""
    model = nn.Linear(4, 4, device="meta")
    averaged = swa_utils.AveragedModel(model, device="meta")
    with collect() as seen, pytest.raises(RuntimeError, match="meta tensors"):
        smelt.compile(averaged.update_parameters)(model)
    assert any("cannot be computed now" in event.text for event in seen if event.channel == "breaks")


def test_a_layer_on_another_device_that_counts_its_calls_is_one_graph() -> None:
    seen = _Recorded()
    norm = nn.BatchNorm1d(4, momentum=None, device="meta")
    with pytest.raises(RuntimeError, match="meta tensors"):
        smelt.compile(norm, backend=seen)(torch.ones(3, 4, device="meta"))
    assert len(seen.graphs) == 1 and smelt.counters["graph_breaks"] == 0


def test_a_scaler_asks_the_device_once_for_all_that_is_on_the_host() -> None:
    opt, seen = _elsewhere(torch.optim.AdamW, "cpu"), _Recorded()
    scaler = torch.amp.GradScaler("cpu")
    found = {torch.device("meta"): torch.zeros((), device="meta")}
    with pytest.raises(NotImplementedError, match="no data"):  # there is none to be copied
        smelt.compile(lambda: scaler._maybe_opt_step(opt, {"found_inf_per_device": found}), backend=seen)()
    (module,) = seen.graphs
    copied = [node for node in module.graph.nodes if node.target is torch.where]
    counted = [node for node in copied if node.args[2].name.endswith("step")]
    assert len(copied) == 4 * 4 and len(counted) == 4
    assert all(node.args[0].target == "to" for node in counted)


_AVERAGES: dict[str, Callable[[nn.Module], swa_utils.AveragedModel]] = {
    "equal": swa_utils.AveragedModel,
    "exponential": lambda model: swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    "one by one": lambda model: swa_utils.AveragedModel(model, avg_fn=swa_utils.get_ema_avg_fn(0.9)),
    "buffers": lambda model: swa_utils.AveragedModel(model, use_buffers=True),
}


@pytest.mark.parametrize("name", _AVERAGES)
def test_averages_of_models_are_part_of_the_step(name: str) -> None:
    """They decide by a counter that is a tensor: whether it is the first time."""

    def train(compiled: bool) -> tuple[Any, ...]:
        torch.manual_seed(1)
        with there():
            model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        average = _AVERAGES[name](model)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = _step(model, opt, x, y)
            average.update_parameters(model)
            return loss

        run = smelt.compile(step, fullgraph=True) if compiled else step
        losses = [run(*_batch(number)) for number in range(10)]
        return losses, dict(average.state_dict()), dict(model.state_dict()), opt.state_dict()

    _same(train(True), train(False))
    assert smelt.counters["graphs"] == 2 and smelt.counters.get("eager_graphs", 0) == 0


def test_two_steps_under_a_scaler_in_one_function() -> None:
    """Whether the second finds state depends on the first: a break."""

    def train(compiled: bool) -> list[Any]:
        model = _model()
        opt = torch.optim.Adam(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device_type(), init_scale=8.0)

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            for part, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
                opt.zero_grad()
                scaler.scale(F.cross_entropy(model(part), wanted)).backward()
                scaler.step(opt)
                scaler.update()

        run = smelt.compile(step) if compiled else step
        x, y = _batch(0)
        x[0, 0] = float("inf")
        run(x, y)
        run(*_batch(1))
        return [list(model.parameters()), opt.state_dict()["state"]]

    _same(train(True), train(False))


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        @there()
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)
            self.outer.weight = self.inner.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(self.inner(x).relu())

    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    ours, theirs = Tied(), Tied()
    mine, plain = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, theirs))
    compiled = smelt.compile(step, fullgraph=True)
    for number in range(4):
        x = _batch(number)[0][:, :6]
        torch.testing.assert_close(compiled(ours, mine, x), step(theirs, plain, x))
    _same(list(ours.parameters()), list(theirs.parameters()))
    assert smelt.counters["graphs"] == 2


def test_a_hook_on_a_parameter_is_run() -> None:
    """It is a break: Python runs the backward."""

    def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _step(model, opt, x, y)

    seen: list[int] = []
    model = _model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = smelt.compile(step)
    compiled(model, opt, *_batch(0))
    compiled(model, opt, *_batch(1))
    next(iter(model.parameters())).register_hook(lambda gradient: seen.append(gradient.numel()))
    compiled(model, opt, *_batch(2))
    assert seen == [128], "the hook that was there by then ran once"


def test_beyond_the_limit_of_versions_a_step_runs_in_python() -> None:
    """What the compiler does when the backward of a part comes is not taken for the program's, which may not break."""

    def gradients(model: nn.Module, x: torch.Tensor) -> Any:
        return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    compiled = smelt.compile(gradients, fullgraph=True)
    with pytest.warns(SmeltWarning, match="SM011"):
        for number in range(smelt.config.cache_size_limit + 2):
            model, (x, _) = _model(), _batch(number)
            _same(compiled(model, x), gradients(model, x))


@pytest.mark.parametrize("name", ["SparseAdam", "SGD"])
def test_sparse_gradients_are_a_break(name: str) -> None:
    """Optimizers ask whether gradients are sparse, and some refuse those that are not."""

    def train(compiled: bool) -> tuple[Any, ...]:
        torch.manual_seed(1)
        with there():
            table, layer = nn.Embedding(11, 4, sparse=True), nn.Linear(4, 3)
        sparse = getattr(torch.optim, name)(table.parameters(), lr=0.1)
        dense = torch.optim.Adam(layer.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            sparse.zero_grad()
            dense.zero_grad()
            loss = F.cross_entropy(layer(table(x).mean(1)), y)
            loss.backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            sparse.step()
            dense.step()
            return loss

        run = smelt.compile(step) if compiled else step
        losses = []
        for number in range(5):
            with there():
                generator = seeded(number)
                given = [torch.randint(0, most, size, generator=generator) for most, size in ((11, (5, 3)), (3, (5,)))]
            losses.append(run(*given))
        return losses, list(table.parameters()), list(layer.parameters()), sparse.state_dict()["state"]

    _same(train(True), train(False))
