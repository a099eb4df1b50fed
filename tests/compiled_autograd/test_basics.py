"""Backwards under compiled autograd leave the world as the engine does."""

import threading
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.compiled_autograd import disable, enable
from smelt.torch_abi.probe import SWITCH
from tests.layout import LOOKED_AT, needs_layout, when_read

BACKENDS = ("eager", "aot_eager", "llvm")


def engine_backwards() -> int:
    return smelt.counters["engine_backwards"]


def captures() -> int:
    return smelt.counters["compiled_autograd_captures"]


def model_and_data() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    return model, torch.randn(5, 6)


def gradients_of(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def check_close(found: list[torch.Tensor | None], wanted: list[torch.Tensor | None]) -> None:
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_trains_as_in_eager(backend: str, compiled: bool) -> None:
    reference, x = model_and_data()
    model, _ = model_and_data()
    call = smelt.compile(model, backend=backend) if compiled else model
    for _ in range(3):
        reference(x).square().mean().backward()
        with enable(smelt.compile(backend=backend)):
            call(x).square().mean().backward()
    check_close(gradients_of(model), gradients_of(reference))
    assert captures() == when_read(1)
    assert engine_backwards() == 0 or not LOOKED_AT


def test_a_gradient_that_is_there_is_no_reason_to_compile_again() -> None:
    model, x = model_and_data()
    with enable("eager"):
        for clear in (True, False, False, True):
            if clear:
                model.zero_grad()
            model(x).sum().backward()
    assert captures() == when_read(1)


def test_gradients_lie_in_memory_as_leaves_do() -> None:
    leaf = torch.randn(4, 3).t().requires_grad_()
    other = torch.randn(3, 4, requires_grad=True)
    with enable("eager"):
        (leaf * other).sum().backward()
    assert leaf.grad is not None and leaf.grad.stride() == leaf.stride()


def views_among(gradients: Iterable[torch.Tensor | None]) -> list[bool | None]:
    return [None if gradient is None else gradient._is_view() for gradient in gradients]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_views_where_eagers_are(backend: str, hooked: bool) -> None:
    reference, x = model_and_data()
    model, _ = model_and_data()
    for each in (reference, model):
        each.register_parameter("square", nn.Parameter(torch.ones(4, 4)))
        each.register_parameter("turned", nn.Parameter(torch.ones(4, 4)))  # gets what `square` gets, turned
        each.register_parameter("flat", nn.Parameter(torch.ones(16)))  # gets it, flat
        if hooked:
            next(each.parameters()).register_hook(lambda gradient: gradient * 2)

    def loss(each: nn.Module) -> torch.Tensor:
        square: torch.Tensor = each.square + each.turned.t() + each.flat.view(4, 4)  # type: ignore[operator]
        square = square * torch.arange(16.0).view(4, 4)
        return each(x).sum() + square.sum()

    loss(reference).backward()
    wanted = torch.autograd.grad(loss(reference), list(reference.parameters()))
    with enable(smelt.compile(backend=backend)):
        loss(model).backward()
        found = torch.autograd.grad(loss(model), list(model.parameters()))
    assert views_among(gradients_of(model)) == views_among(gradients_of(reference)) == [False] * 9
    assert hooked or (views_among(found) == views_among(wanted) and any(views_among(wanted)))
    check_close(gradients_of(model), gradients_of(reference))
    check_close(list(found), list(wanted))
    assert engine_backwards() == 0 or not LOOKED_AT


LEAVES: dict[str, Callable[[], torch.Tensor]] = {
    "rows": lambda: torch.randn(3, 4),
    "turned": lambda: torch.randn(4, 3).t(),
    "gaps": lambda: torch.randn(3, 8)[:, ::2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "a side of one": lambda: torch.randn(3, 1, 4).transpose(0, 1),
    "number": lambda: torch.randn(()),
    "empty": lambda: torch.randn(0, 4),
    "half": lambda: torch.randn(3, 4, dtype=torch.bfloat16),
}
BEFORE: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "nothing": lambda leaf: None,
    "like it": lambda leaf: torch.full_like(leaf, 2).contiguous(),
    "turned": lambda leaf: torch.full_like(leaf, 2).mT.contiguous().mT if leaf.dim() > 1 else torch.full_like(leaf, 2),
    "sparse": lambda leaf: torch.full_like(leaf, 2).to_sparse(),
    "a parameter": lambda leaf: nn.Parameter(torch.full_like(leaf, 2).contiguous(), False),
    "one that requires grad": lambda leaf: torch.full_like(leaf, 2).contiguous().requires_grad_(),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("layout", LEAVES)
def test_gradients_arrive_as_the_engine_has_them_arrive(layout: str, before: str) -> None:
    """The same object or another, with the same layout, whatever was there."""

    def found(by_smelt: bool) -> tuple[object, ...]:
        torch.manual_seed(0)
        leaf = LEAVES[layout]().requires_grad_()
        leaf.grad = there = BEFORE[before](leaf.detach())
        loss = (leaf * leaf).sum()
        if by_smelt:
            with enable("eager"):
                loss.backward()
        else:
            loss.backward()
        assert leaf.grad is not None
        kind = (type(leaf.grad), leaf.grad.layout, leaf.grad.dtype, leaf.grad.requires_grad, leaf.grad._is_view())
        strides = leaf.grad.stride() if leaf.grad.layout is torch.strided else ()
        steps = [step for step, size in zip(strides, leaf.shape, strict=False) if size != 1]  # of one any will do
        return leaf.grad is there, kind, steps, leaf.grad.to_dense().tolist()

    assert found(by_smelt=True) == found(by_smelt=False)
    assert engine_backwards() == 0 or not LOOKED_AT


def test_a_gradient_that_somebody_has_is_copied() -> None:
    held: list[torch.Tensor] = []
    leaf = torch.randn(3, requires_grad=True)
    leaf.register_hook(held.append)
    with enable("eager"):
        leaf.exp().sum().backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, held[0])
    assert leaf.grad.data_ptr() != held[0].data_ptr()


def test_leaves_that_get_the_same_gradient_do_not_share_it() -> None:
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    given = torch.ones(3)
    with enable("eager"):
        (x + y).backward(given)
    assert x.grad is not None and y.grad is not None
    x.grad.add_(5)
    assert torch.equal(y.grad, torch.ones(3)) and torch.equal(given, torch.ones(3))


def test_what_was_saved_is_freed_and_a_second_backward_refused() -> None:
    model, x = model_and_data()
    for call in (model, smelt.compile(model, backend="aot_eager")):
        loss = call(x).sum()
        with enable("eager"):
            loss.backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()


def test_a_retained_graph_can_be_used_again() -> None:
    model, x = model_and_data()
    loss = smelt.compile(model, backend="aot_eager")(x).sum()
    with enable("eager"):
        loss.backward(retain_graph=True)
        first = [gradient.clone() for gradient in gradients_of(model) if gradient is not None]
        loss.backward()
    check_close(gradients_of(model), [2 * gradient for gradient in first])


def test_a_saved_tensor_changed_since_is_an_error() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    loss = y.sum()
    with torch.no_grad():
        y.add_(1)
    with enable("eager"), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_that_are_asked_for() -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)

    def losses() -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(x @ w)
        return hidden, (hidden * hidden).sum()

    hidden, loss = losses()
    want = torch.autograd.grad(loss, (w, hidden, x))
    hidden, loss = losses()
    with enable("eager"):
        found = torch.autograd.grad(loss, (w, hidden, x))
        for have, expected in zip(found, want, strict=True):
            assert torch.equal(have, expected)
        unused = torch.randn(2, requires_grad=True)
        assert torch.autograd.grad(losses()[1], (x, unused), allow_unused=True)[1] is None
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad(losses()[1], (x, unused))
    assert x.grad is None and w.grad is None


def test_a_backward_to_some_leaves_only() -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    with enable("eager"):
        (x @ w).sum().backward(inputs=[w])
    assert x.grad is None and w.grad is not None
    assert torch.equal(w.grad, torch.autograd.grad((x @ w).sum(), w)[0])
    assert captures() == when_read(1)


def test_several_roots() -> None:
    x = torch.randn(3, requires_grad=True)
    with enable("eager"):
        torch.autograd.backward([x * 2, (x * x).sum()], [torch.ones(3), None])
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 + 2 * x.detach())


@pytest.mark.parametrize(
    ("reason", "run"),
    [
        ("create_graph", lambda x: (x * x).sum().backward(create_graph=True)),
        ("leaf", lambda x: x.backward(torch.ones(3))),
        ("packed by hooks", lambda x: _saving_on_hooks(x).backward()),
        ("anomaly", lambda x: _watched(x)),
    ],
)
def test_what_is_left_to_the_engine_says_why(reason: str, run: Callable[[torch.Tensor], None]) -> None:
    x, reference = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    run(reference)
    with collect() as events, enable("eager"):
        run(x)
    assert engine_backwards() == 1
    reasons = [event.text for event in events if event.channel == "compiled_autograd"]
    assert any(reason in text or (SWITCH in text and not LOOKED_AT) for text in reasons)
    assert x.grad is not None and reference.grad is not None and torch.equal(x.grad, reference.grad)


def _saving_on_hooks(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return (x * x).sum()


def _watched(x: torch.Tensor) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        (x * x).sum().backward()


def test_blocks_nest_and_end() -> None:
    x = torch.randn(3, requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    with enable("eager"):
        with disable():
            (x * 2).sum().backward()
        assert captures() == 0
        with enable("aot_eager"):
            (x * 2).sum().backward()
        (x * 2).sum().backward()
        assert captures() == when_read(2)  # each compiler has its own
    (x * 2).sum().backward()
    assert captures() == when_read(2)
    assert torch.autograd.Variable._execution_engine is engine
    with pytest.raises(smelt.SmeltError, match="SM002"), enable(3):
        pass


def test_equal_settings_share_what_was_compiled() -> None:
    x = torch.randn(3, requires_grad=True)
    for _ in range(3):
        with enable(smelt.compile(backend="eager", fullgraph=True)):
            (x * 2).sum().backward()
    assert captures() == when_read(1)


def test_settings_that_differ_share_nothing() -> None:
    x = torch.randn(3, requires_grad=True)
    for mode in ("default", "reduce-overhead", "max-autotune-no-cudagraphs"):
        with enable(smelt.compile(backend="eager", mode=mode)):
            (x * 2).sum().backward()
    assert captures() == when_read(3)


@needs_layout
def test_a_compiler_of_ones_own_gets_the_module() -> None:
    seen: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        seen.append(module)
        return module

    x = torch.randn(3, requires_grad=True)
    with enable(keep):
        (x * 2).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((3,), 2.0))
    assert "aten.mul" in seen[0].code


def test_the_switch_works_in_every_thread_and_a_block_in_its_own() -> None:
    x = torch.randn(3, requires_grad=True)

    def elsewhere(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def work() -> None:
        (x * 2).sum().backward()

    with enable("eager"):
        elsewhere(work)
    assert captures() == 0
    smelt.config.compiled_autograd = True
    elsewhere(work)
    assert captures() == when_read(1)
    smelt.config.compiled_autograd = False
    work()
    assert captures() == when_read(1)
    assert x.grad is not None and torch.equal(x.grad, torch.full((3,), 6.0))


def test_many_threads_compile_one_backward_once() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(4)]
    data = torch.randn(4, 4)

    def work(weight: torch.Tensor) -> None:
        with enable("aot_eager"):
            for _ in range(5):
                torch.tanh(data @ weight).sum().backward()

    threads = [threading.Thread(target=work, args=(weight,)) for weight in weights]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for weight in weights:
        reference = weight.detach().requires_grad_()
        for _ in range(5):
            torch.tanh(data @ reference).sum().backward()
        torch.testing.assert_close(weight.grad, reference.grad)
    assert captures() == when_read(1)


def test_an_unused_branch_leaves_no_gradient() -> None:
    """Not zeros, which an optimizer would take for a gradient."""
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    with enable("eager"):
        torch.stack([x * 2, y * 3]).unbind()[0].sum().backward()
    a, b = x.grad, y.grad
    x.grad = y.grad = None
    torch.stack([x * 2, y * 3]).unbind()[0].sum().backward()
    torch.testing.assert_close(a, x.grad)
    torch.testing.assert_close(b, y.grad)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, number: x * number,
        lambda x, number: x / number,
        lambda x, number: x.pow(number),
        lambda x, number: torch.lerp(x, x * 2, number),
        lambda x, number: torch.tensor(number) * x,
        lambda x, number: torch.where(x > 0.5, x * number, x),
        lambda x, number: torch.clamp(x, max=number / 4),
    ],
)
def test_a_number_in_the_forward_is_not_taken_for_the_last_one(compute: Callable[..., torch.Tensor]) -> None:
    """PyTorch saves a number as a tensor and hands it to operators as a number: its value is part of the backward."""
    for number in (2.0, 3.0, 0.5, -0.0, 0.0, 2.0):
        x = torch.linspace(0.1, 1, 5).requires_grad_()
        want = torch.autograd.grad(compute(x, number).sum(), x)[0]
        with enable("eager"):
            compute(x, number).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, want, rtol=0, atol=0, equal_nan=True)


def test_sizes_hidden_in_a_node_are_not_taken_for_the_last_ones() -> None:
    """The backward of `cat` holds the sizes of all it joined, and shows none of them."""
    x = torch.randn(4, requires_grad=True)
    for before, after in ((1, 2), (2, 1), (1, 2), (3, 0)):
        weights = torch.arange(7.0)
        with enable("eager"):
            (torch.cat([torch.zeros(before), x, torch.zeros(after)]) * weights).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, weights[before : before + 4])
        x.grad = None
    with enable("eager"):
        for first, second in ((2, 5), (3, 4)):
            one, other = torch.randn(first, requires_grad=True), torch.randn(second, requires_grad=True)
            (torch.cat([one, other]) * weights).sum().backward()
            assert one.grad is not None and torch.equal(one.grad, weights[:first])


def test_tensors_that_were_one_are_not_taken_for_one_again() -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for one, other in ((x, x), (x, y), (x, x), (y, x)):
        want = torch.autograd.grad((one * other).sum(), one)[0]
        with enable("eager"):
            assert torch.equal(torch.autograd.grad((one * other).sum(), one)[0], want)


def _note(log: list[str], name: str, gradient: torch.Tensor) -> None:
    log.append(name)


def test_nodes_in_another_order_are_another_backward() -> None:
    """Sums of gradients depend on who comes first, as rounding does, and hooks show it."""
    for swap in (False, True, False):
        log: list[str] = []
        x = torch.randn(3, requires_grad=True)
        parts = {}
        for name in ("b", "a") if swap else ("a", "b"):
            parts[name] = x * 2
            parts[name].register_hook(partial(_note, log, name))
        total = (parts["a"] + parts["b"]).sum()
        total.backward(retain_graph=True)
        with enable("eager"):
            total.backward()
        assert log[:2] == log[2:]


def test_a_backend_that_cannot_be_hashed_can_still_be_given() -> None:
    class Backend:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, module: torch.fx.GraphModule, examples: object) -> torch.fx.GraphModule:
            return module

    x = torch.randn(3, requires_grad=True)
    compiler = smelt.compile(backend=Backend())
    for _ in range(2):
        with enable(compiler):
            (x * 2).sum().backward()
    assert captures() == when_read(1)
    assert torch.equal(smelt.compile(torch.sin, backend=Backend())(x), x.sin())
