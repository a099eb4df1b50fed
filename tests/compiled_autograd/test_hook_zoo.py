"""Every kind of hook, alone and together, with and without breaks: values, order and Python effects are eager's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.compiled_autograd import enable
from tests.layout import LOOKED_AT

Log = list[Any]
# Builds what the step needs and returns the step: it runs a forward and yields the loss, hooks noting in the log.
Program = Callable[[Log], tuple[Callable[[], torch.Tensor], list[torch.Tensor]]]


class Double(torch.autograd.Function):
    """A function of the user's, which notes each backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, log: Log) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.log = log
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.log.append(("double", float(gradient.sum())))
        return gradient * 2 + 0 * ctx.saved_tensors[0], None


class TwoOfThree(torch.autograd.Function):
    """Gives no gradient for one of its inputs, and gets one for one of two results."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.scale = scale
        return x * scale, y + 1

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> Any:
        return first * ctx.scale + second.sum(), None, None


double: Callable[..., torch.Tensor] = Double.apply
two_of_three: Callable[..., tuple[torch.Tensor, torch.Tensor]] = TwoOfThree.apply


def mark(log: Log, name: str, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Callable[..., Any]:
    def hook(gradient: torch.Tensor) -> torch.Tensor | None:
        log.append((name, tuple(gradient.shape), round(float(gradient.sum()), 4)))
        return None if change is None else change(gradient)

    return hook


def noted(gradients: tuple[torch.Tensor | None, ...]) -> list[float | None]:
    return [None if each is None else round(float(each.sum()), 4) for each in gradients]


def broken(value: torch.Tensor) -> torch.Tensor:
    """The same; a compiled forward ends one graph here and begins another."""
    smelt.graph_break()
    return value


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def tensor_hooks_on_leaves(log: Log) -> Any:
    x, w = leaves()
    x.register_hook(mark(log, "x", lambda g: g + 10))
    x.register_hook(mark(log, "x again"))
    w.register_hook(mark(log, "w", lambda g: g * 2))
    return lambda: broken(x @ w).tanh().sum(), [x, w]


def tensor_hooks_in_the_middle(log: Log) -> Any:
    x, w = leaves()

    def step() -> torch.Tensor:
        hidden = broken(x @ w)
        hidden.register_hook(mark(log, "hidden", lambda g: g.clamp(-0.5, 0.5)))
        after = hidden.tanh()
        after.register_hook(mark(log, "after", lambda g: g * 3))
        after.register_hook(mark(log, "after again"))
        del hidden
        return after.sin().sum()

    return step, [x, w]


def pre_and_post_hooks(log: Log) -> Any:
    x, w = leaves()

    def step() -> torch.Tensor:
        product = x @ w
        result = product.tanh()
        node: Any = product.grad_fn

        def before(gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            log.append(("pre", noted(gradients)))
            return tuple(gradient * 0.5 for gradient in gradients)

        def after(outgoing: Any, incoming: Any) -> Any:
            log.append(("post", noted(outgoing), noted(incoming)))
            return tuple(gradient + 1 for gradient in outgoing)

        node.register_prehook(before)
        node.register_hook(after)
        node.register_hook(lambda outgoing, incoming: log.append(("post again", noted(outgoing))))
        return result.sum()

    return step, [x, w]


def post_accumulate_hooks(log: Log) -> Any:
    x, w = leaves()

    def note(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        log.append(("accumulated", round(float(leaf.grad.sum()), 4), [each.grad is not None for each in (x, w)]))

    x.register_post_accumulate_grad_hook(note)
    w.register_post_accumulate_grad_hook(note)
    return lambda: broken(x @ w).tanh().sum(), [x, w]


def hooks_that_look_at_other_gradients(log: Log) -> Any:
    x, w = leaves()

    def step() -> torch.Tensor:
        hidden = broken(x * 2).tanh()
        hidden.register_hook(lambda gradient: log.append(("w has", w.grad is not None)))
        return (hidden @ w).sum()

    return step, [x, w]


def module_hooks(log: Log) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    for number, layer in enumerate(model):

        def before(module: nn.Module, outgoing: Any, number: int = number) -> None:
            log.append(("module pre", number, noted(outgoing)))

        def after(module: nn.Module, incoming: Any, outgoing: Any, number: int = number) -> None:
            log.append(("module", number, noted(incoming), noted(outgoing)))

        layer.register_full_backward_pre_hook(before)
        layer.register_full_backward_hook(after)
    x = leaves()[0]
    return lambda: model(x).sum(), [x, *model.parameters()]


def functions_of_the_users(log: Log) -> Any:
    x, w = leaves()

    def step() -> torch.Tensor:
        first, _ = two_of_three(x * 1, w * 1, 3.0)
        return (double(broken(first), log) @ w).sum()

    return step, [x, w]


def retained_gradients(log: Log) -> Any:
    x, w = leaves()
    kept: list[torch.Tensor] = []

    def step() -> torch.Tensor:
        if kept:
            assert kept[-1].grad is not None
            log.append(("kept", round(float(kept[-1].grad.sum()), 4)))
        hidden = (x @ w).tanh()
        hidden.retain_grad()
        hidden.register_hook(mark(log, "hidden", lambda g: g * 2))
        kept.append(hidden)
        return hidden.sum()

    return step, [x, w]


def queued_callbacks(log: Log) -> Any:
    x, w = leaves()

    def hook(gradient: torch.Tensor) -> None:
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: log.append(("at the end", x.grad is not None, w.grad is not None)))
        log.append("queued")

    w.register_hook(hook)
    return lambda: broken(x @ w).sin().sum(), [x, w]


def hooks_of_several_gradients(log: Log) -> Any:
    x, w = leaves()

    def step() -> torch.Tensor:
        one, other = x * 2, w * 3
        torch.autograd.graph.register_multi_grad_hook((one, other), lambda found: log.append(("all", noted(found))))
        torch.autograd.graph.register_multi_grad_hook((one, other), lambda g: log.append("any"), mode="any")
        return (one @ other).sum()

    return step, [x, w]


def writes_to_views(log: Log) -> Any:
    x, w = leaves()

    def step() -> torch.Tensor:
        base = x * 2
        base[0].mul_(w[0])
        base[:, 1] = w[1]
        return (base * base).sum()

    return step, [x, w]


def recomputation(log: Log) -> Any:
    x, w = leaves()

    def part(value: torch.Tensor) -> torch.Tensor:
        log.append("part runs")
        return (value @ w).tanh().sin()

    def step() -> torch.Tensor:
        kept: torch.Tensor = checkpoint(part, x, use_reentrant=False)
        again: torch.Tensor = checkpoint(part, kept, use_reentrant=True)
        return again.sum()

    return step, [x, w]


def many_leaves(log: Log) -> Any:
    """The engine gives them their gradients in an order of its own, and adds to those that were used twice later."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    x, scale = leaves()[0], torch.full((4,), 0.5, requires_grad=True)
    tensors = [x, scale, *model.parameters()]
    for number, leaf in enumerate(tensors):
        leaf.register_hook(mark(log, f"leaf {number}"))
        leaf.register_post_accumulate_grad_hook(lambda leaf, number=number: log.append(("accumulated", number)))

    def step() -> torch.Tensor:
        hidden = model[:3](x * scale)
        return model[3:](broken(hidden) * scale).square().sum()

    return step, tensors


def effects_that_count(log: Log) -> Any:
    x, w = leaves()
    seen = {"times": 0}

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        seen["times"] += 1
        log.append(seen["times"])
        return gradient * seen["times"]

    x.register_hook(hook)
    return lambda: (x @ w).sum(), [x, w]


def everything_together(log: Log) -> Any:
    x, w = leaves()
    x.register_hook(mark(log, "x", lambda g: g + 1))
    w.register_post_accumulate_grad_hook(lambda leaf: log.append("w accumulated"))
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(0.25)
    layer.register_full_backward_hook(lambda module, incoming, outgoing: log.append(("layer", noted(incoming))))

    def step() -> torch.Tensor:
        hidden = layer(broken(x @ w))
        hidden.register_hook(mark(log, "hidden"))
        doubled = double(hidden, log)
        node: Any = doubled.grad_fn
        node.register_prehook(lambda gradients: log.append(("pre", noted(gradients))))
        return doubled.tanh().sum()

    return step, [x, w, *layer.parameters()]


ZOO: list[Program] = [
    tensor_hooks_on_leaves,
    tensor_hooks_in_the_middle,
    pre_and_post_hooks,
    post_accumulate_hooks,
    hooks_that_look_at_other_gradients,
    module_hooks,
    functions_of_the_users,
    retained_gradients,
    queued_callbacks,
    hooks_of_several_gradients,
    writes_to_views,
    recomputation,
    many_leaves,
    effects_that_count,
    everything_together,
]


# Those that wait for several gradients ask the engine which of them will come; checkpoints pack what is saved.
LEFT_TO_THE_ENGINE = (hooks_of_several_gradients, recomputation)


def outcome(program: Program, *, compiled: str | None, backend: str | None) -> tuple[Log, list[torch.Tensor]]:
    """Four steps; gradients are cleared after the second."""
    log: Log = []
    step, tensors = program(log)
    if compiled is not None:
        step = smelt.compile(step, backend=compiled)
    for number in range(4):
        if number == 2:
            for tensor in tensors:
                tensor.grad = None
        loss = step()
        if backend is None:
            loss.backward()
        else:
            with enable(smelt.compile(backend=backend)):
                loss.backward()
        log.append("step")
    found = [tensor.grad for tensor in tensors]
    assert all(gradient is not None for gradient in found)
    return log, found  # type: ignore[return-value]


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("program", ZOO, ids=lambda program: str(program.__name__))
def test_hooks_do_what_they_do_in_eager(program: Program, backend: str) -> None:
    wanted_log, wanted = outcome(program, compiled=None, backend=None)
    log, found = outcome(program, compiled=None, backend=backend)
    captured = LOOKED_AT and program not in LEFT_TO_THE_ENGINE
    assert bool(smelt.counters["compiled_autograd_captures"]) == captured
    assert backend != "eager" or log == wanted_log
    assert [_name(entry) for entry in log] == [_name(entry) for entry in wanted_log]
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("program", ZOO, ids=lambda program: str(program.__name__))
def test_hooks_of_a_compiled_forward_do_what_they_do_in_eager(program: Program) -> None:
    wanted_log, wanted = outcome(program, compiled=None, backend=None)
    for backend in (None, "aot_eager"):
        log, found = outcome(program, compiled="aot_eager", backend=backend)
        assert log == wanted_log
        for have, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(have, want)


def _name(entry: Any) -> Any:
    return entry[0] if isinstance(entry, tuple) else entry
