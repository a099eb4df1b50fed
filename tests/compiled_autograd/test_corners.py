"""What is rare, and easily forgotten: hooks that write, remove others or raise; memory; dtypes of gradients."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base import events
from smelt.compiled_autograd import enable
from tests.layout import needs_layout, when_read


def both_ways(program: Callable[[], Any], backend: str = "eager") -> tuple[Any, Any]:
    """What a program yields in the engine, and what it yields here at the third time."""
    wanted = program()
    found = None
    for _ in range(3):
        with enable(smelt.compile(backend=backend)):
            found = program()
    return found, wanted


def _add_one(gradient: torch.Tensor) -> None:
    gradient.add_(1)


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_a_hook_may_write_the_gradient_in_place(backend: str) -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        hidden = x * 2
        hidden.register_hook(lambda gradient: gradient.mul_(3))
        x.register_hook(_add_one)
        ((hidden + y) * torch.arange(3.0)).sum().backward()
        return [x.grad.tolist(), y.grad.tolist()]  # type: ignore[union-attr]

    found, wanted = both_ways(program, backend)
    assert found == wanted


def test_a_hook_may_remove_itself_and_others() -> None:
    def program() -> list[str]:
        log: list[str] = []
        x = torch.randn(3, requires_grad=True)
        handles: dict[str, Any] = {}

        def once(gradient: torch.Tensor) -> None:
            log.append("once")
            handles["once"].remove()
            handles["other"].remove()

        hidden = x * 2
        handles["once"] = hidden.register_hook(once)
        handles["other"] = x.register_post_accumulate_grad_hook(lambda leaf: log.append("removed before it ran"))
        x.register_post_accumulate_grad_hook(lambda leaf: log.append("stays"))
        hidden.sum().backward()
        (x * 2).sum().backward()
        return log

    found, wanted = both_ways(program)
    assert found == wanted == ["once", "stays", "stays"]


def test_an_error_in_a_hook_is_the_programs() -> None:
    def refuse(gradient: torch.Tensor) -> None:
        raise KeyError("mine")

    x = torch.randn(3, requires_grad=True)
    (x * 1).sum().backward()
    hidden = x * 2
    hidden.register_hook(refuse)
    for _ in range(2):
        with enable("eager"), pytest.raises(KeyError, match="mine"):
            hidden.sum().backward(retain_graph=True)
    with enable("eager"):
        (x * 1).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_hook_may_not_change_sizes() -> None:
    x = torch.randn(3, requires_grad=True)
    hidden = x * 2
    hidden.register_hook(lambda gradient: gradient[:1])
    with enable("eager"), pytest.raises(RuntimeError, match="has changed the size of value"):
        hidden.sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
def test_nothing_is_kept_that_a_backward_used(compiled: bool) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return (x * x).exp().sum()

    call = smelt.compile(forward, backend="aot_eager") if compiled else forward
    found = []
    for _ in range(3):
        data = torch.randn(4)
        x = data.clone().requires_grad_()
        loss = call(x)
        with enable("eager"):
            loss.backward()
        assert x.grad is not None
        found += [weakref.ref(x), weakref.ref(x.grad)]
        del x, loss, data
    gc.collect()
    assert [reference() for reference in found] == [None] * len(found)


def test_a_kept_loss_keeps_nothing_that_was_saved() -> None:
    """As in eager, what a backward has used is freed, though the graph itself is still there."""
    weight = torch.randn(4, 4, requires_grad=True)
    data = torch.randn(4, 4)
    seen = weakref.ref(data)
    loss = (data @ weight).sum()
    del data
    assert seen() is not None
    with enable("eager"):
        loss.backward()
    gc.collect()
    assert seen() is None and loss.grad_fn is not None


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="gradients have the dtype of their leaf here")
def test_a_leaf_that_takes_gradients_of_another_dtype() -> None:
    x = torch.randn(3, dtype=torch.bfloat16, requires_grad=True)
    with enable("eager"):
        (x * 2).sum().backward()
        assert x.grad is not None and x.grad.dtype is torch.bfloat16
        x.grad = None
        x.grad_dtype = torch.float32
        (x * 2).float().sum().backward()
    found = x.grad
    assert found is not None and found.dtype is torch.float32


def test_gradients_of_half_precision_and_mixed() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
        hidden = (x.to(torch.bfloat16) * 2).double() @ w
        (hidden.float().sum() + (x.double() * w.sum()).sum()).backward()
        return [x.grad.tolist(), w.grad.tolist(), x.grad.dtype, w.grad.dtype]  # type: ignore[union-attr]

    found, wanted = both_ways(program)
    assert found == wanted


def test_broadcast_gradients_are_reduced_as_the_engine_does() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        row, column, one = (torch.randn(size, requires_grad=True) for size in ((1, 4), (3, 1), ()))
        ((row + column) * one + one).sin().sum().backward()
        return [row.grad.tolist(), column.grad.tolist(), one.grad.tolist()]  # type: ignore[union-attr]

    found, wanted = both_ways(program)
    assert found == wanted


def test_a_backward_inside_a_hook() -> None:
    def program() -> list[Any]:
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)

        def hook(gradient: torch.Tensor) -> None:
            with torch.enable_grad():
                (y * y).sum().backward()

        hidden = x * 2
        hidden.register_hook(hook)
        hidden.sum().backward()
        return [x.grad.tolist(), y.grad.tolist()]  # type: ignore[union-attr]

    found, wanted = both_ways(program)
    assert found == wanted


def test_a_model_of_many_sizes_gets_one_dynamic_graph() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    with enable("eager"):
        for batch in (5, 9, 4, 17, 5, 12):
            x = torch.randn(batch, 6)
            wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()), allow_unused=False)
            model.zero_grad()
            model(x).square().sum().backward()
            for parameter, want in zip(model.parameters(), wanted, strict=True):
                torch.testing.assert_close(parameter.grad, want)
    assert smelt.counters["compiled_autograd_captures"] == when_read(4)  # two for each way of asking


@needs_layout  # the engine refuses nothing
def test_a_function_that_gives_another_set_of_gradients_is_refused() -> None:
    class Moody(torch.autograd.Function):
        gives = True

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * 2 if Moody.gives else None

    apply: Callable[[torch.Tensor], torch.Tensor] = Moody.apply
    x = torch.randn(3, requires_grad=True)
    with enable("eager"):
        apply(x).sum().backward()
        apply(x).sum().backward()
        Moody.gives = False
        with pytest.raises(RuntimeError, match="disable compiled autograd for what uses it"):
            apply(x).sum().backward()


def test_what_nothing_arrives_for_is_not_spent() -> None:
    """A graph that is reached by way of another, for a gradient that does not come, can be gone through later."""

    def program(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        one, other = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        both, before = (lambda x, y: (x * 2, (y * 3).tanh())), (lambda x: x.exp())
        if compiled:
            both, before = (smelt.compile(each, backend="aot_eager") for each in (both, before))  # type: ignore[assignment]
        first, second = both(one, before(other))
        first.sum().backward()
        found = [one.grad, other.grad]
        second.sum().backward()
        return [*found, one.grad, other.grad]

    expected = program(False)
    for _ in range(2):
        with enable(smelt.compile(backend="aot_eager")):
            torch.testing.assert_close(program(True), expected)


def test_a_backward_that_is_traced_only_now() -> None:
    """The forward came from a cache on disk: tracing it again is not part of what is captured."""
    x = torch.randint(0, 11, (4,))
    for _ in range(2):
        smelt.reset()
        torch.manual_seed(0)
        model = torch.nn.Embedding(11, 4, sparse=True)
        plain = torch.nn.Embedding(11, 4, sparse=True)
        plain.load_state_dict(model.state_dict())
        loss = smelt.compile(model)(x).square().sum()
        with enable(smelt.compile()):
            loss.backward()
        plain(x).square().sum().backward()
        assert model.weight.grad is not None and plain.weight.grad is not None and model.weight.grad.is_sparse
        torch.testing.assert_close(model.weight.grad.to_dense(), plain.weight.grad.to_dense())


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_an_optimizer_may_step_in_hooks(backend: str) -> None:
    """The weights that a compiled forward saved are written before its backward has ended."""

    def program(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        for weight in model.parameters():
            optimizer = torch.optim.SGD([weight], lr=0.1)
            weight.register_post_accumulate_grad_hook(lambda leaf, optimizer=optimizer: optimizer.step())
        forward = wrap(lambda x: (model(x).square().mean(), model(-x).abs().mean()))
        for _ in range(3):
            loss, other = forward(torch.randn(5, 4))
            loss.backward()
            with pytest.raises(RuntimeError, match=r"modified by an inplace operation|a second time"):
                other.backward()
        return [weight.detach().clone() for weight in model.parameters()]

    wanted = program(lambda function: function)
    smelt.config.compiled_autograd = True
    found = program(smelt.compile(backend=backend))
    torch.testing.assert_close(found, wanted)


@needs_layout
@pytest.mark.parametrize("hooked", [False, True])
def test_a_default_device_is_no_reason_for_the_engine(hooked: bool) -> None:
    x, modes = torch.ones(3, device="cpu", requires_grad=True), torch._C._len_torch_function_stack()
    with torch.device("cpu"), events.collect() as seen, enable(smelt.compile()):
        for _ in range(2):
            loss = (x * 2).sin().sum()
            if hooked:
                loss.register_hook(lambda gradient: gradient * torch.full((), 2.0))
            loss.backward()
        assert torch._C._len_torch_function_stack() == modes + 1
    assert not [event.text for event in seen if "left to the engine" in event.text]
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0, device="cpu").cos() * (8 if hooked else 4))
