"""`torch.autograd.Function` inside captured functions: their own derivatives, of any order, in every backend."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import smelt
from tests.capture.contexts import every_backend, same


def data(*shape: int) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(*(shape or (3, 4)), requires_grad=True)


class Scaled(Function):
    """Not the true derivative: what is called must be this one."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x)
        ctx.by = by
        return x * x * by

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * ctx.by, None


class SavesOutput(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


class SetUp(Function):
    @staticmethod
    def forward(x, w):
        return x @ w

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w = inputs
        ctx.save_for_backward(x, w)
        ctx.shape = output.shape

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t() if ctx.needs_input_grad[0] else None, x.t() @ grad if ctx.needs_input_grad[1] else None


class Several(Function):
    """Several outputs, one of which has no derivative, and one no tensor."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort(dim=-1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices, None, x.shape[0]

    @staticmethod
    def backward(ctx, grad, *rest):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, indices, grad)


class Intermediate(Function):
    """Keeps something that is neither argument nor result, in an attribute."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        ctx.scale = float(x.shape[-1])
        return torch.where(ctx.mask, x, x * 0.1)

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.mask, grad, grad * 0.1) / ctx.scale


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos()


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, strength=1.0):
        ctx.strength = strength
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


def scaled(x):
    return Scaled.apply(x.sin(), 2).exp(), Scaled.apply(x, 0.5)


def saves_output(x):
    return SavesOutput.apply(x) * x


def set_up(x):
    return SetUp.apply(x, x.t().detach()) + SetUp.apply(x.detach(), x.t())


def several(x):
    values, indices, nothing, number = Several.apply(x)
    return values * 2, indices, nothing, number


def intermediate(x):
    return Intermediate.apply(x) * 2


def once(x):
    return Once.apply(x) + x


def written_after(x):
    y = SavesOutput.apply(x)
    z = Intermediate.apply(x)
    z.add_(1)
    return y * z, z


def without_gradients(x):
    with torch.no_grad():
        y = Scaled.apply(x, 2)
    return y, Scaled.apply(x.detach(), 3), y.requires_grad


def nested_calls(x):
    return Scaled.apply(SavesOutput.apply(Scaled.apply(x, 2) * 0.1), 3)


class UsesAnother(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Scaled.apply(x, 2)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return F.silu(grad) * math.pi + torch.finfo(torch.float32).eps * x


def uses_another(x):
    return UsesAnother.apply(x)


apply_scaled = Scaled.apply


def by_another_name(x):
    return apply_scaled(x, 2) + 1


class OwnApply(Function):
    @classmethod
    def apply(cls, x):
        return super().apply(x * 2)

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


def own_apply(x):
    return OwnApply.apply(x)


class OneGradient(Function):
    """As TRL's losses: what has no gradient is not computed with zeros in its place."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        signs, largest = x > 0, x.max()
        ctx.mark_non_differentiable(largest)
        return x * 2, signs, largest, None

    @staticmethod
    def backward(ctx, grad, signs, largest, nothing):
        assert signs is None and largest is None and nothing is None
        return None if grad is None else grad * 7


def one_gradient(x):
    doubled, signs, largest, _ = OneGradient.apply(x)
    return torch.where(signs, doubled, largest)


class StopsGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return None


def no_gradient_arrives(x):
    return StopsGradient.apply(OneGradient.apply(x)[0]) + x


FUNCTIONS = [
    by_another_name, own_apply, one_gradient, no_gradient_arrives,
    scaled, saves_output, set_up, several, intermediate, once, written_after, without_gradients, nested_calls,
    uses_another,
]  # fmt: skip


@every_backend
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_eager(function: Any, backend: str) -> None:
    same(function, data(), backend=backend)


@every_backend
@pytest.mark.parametrize("function", [scaled, saves_output, nested_calls])
def test_second_derivatives(function: Any, backend: str) -> None:
    smelt.reset()
    compiled = smelt.compile(function, backend=backend, fullgraph=True)

    def penalty(run: Any) -> Any:
        x = data()
        out = run(x)
        total = sum(each.sum() for each in (out if isinstance(out, tuple) else (out,)))
        (grad,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad((grad * grad).sum(), x)[0]

    for _ in range(2):
        torch.testing.assert_close(penalty(compiled), penalty(function))


@every_backend
def test_once_differentiable_refuses_a_second_derivative(backend: str) -> None:
    x = data()
    (grad,) = torch.autograd.grad(smelt.compile(once, backend=backend)(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strength = 0.5
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.last(Reversed.apply(self.first(x), self.strength))


@every_backend
def test_in_a_module_whose_state_changes(backend: str) -> None:
    smelt.reset()
    torch.manual_seed(0)
    model = Module()
    compiled, x = smelt.compile(model, backend=backend, fullgraph=True), data()
    for strength in (0.5, 2.0, 3.0, 4.0):
        model.strength = strength
        got = torch.autograd.grad(compiled(x).sum(), x)[0]
        torch.testing.assert_close(got, torch.autograd.grad(model(x).sum(), x)[0])
    assert smelt.counters["graphs"] == 2  # the second takes the number as an input


def test_another_backward_is_noticed() -> None:
    class Mine(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    compiled = smelt.compile(lambda x: Mine.apply(x), backend="eager", fullgraph=True)
    x = data()
    assert torch.autograd.grad(compiled(x).sum(), x)[0].max() == 2
    Mine.backward = staticmethod(lambda ctx, grad: grad * 7)
    assert torch.autograd.grad(compiled(x).sum(), x)[0].max() == 7


@every_backend
def test_under_autocast_with_custom_fwd_and_bwd(backend: str) -> None:
    class Product(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w.t(), x.t() @ grad

    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Product.apply(x, w)

    same(f, data(4, 4), torch.randn(4, 4, requires_grad=True), backend=backend, tolerance=2e-2)


LOG: list[str] = []
SCALE = 2.0


class Logs(Function):
    @staticmethod
    def forward(ctx, x):
        LOG.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        LOG.append("backward")
        return grad * 2


class LogsForward(Function):
    @staticmethod
    def forward(ctx, x):
        LOG.append("forward")
        return x * SCALE

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class ReadsGlobal(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * SCALE


class Prints(Function):
    @staticmethod
    def forward(ctx, x):
        print("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


class ReturnsViewOfSeveral(Function):
    @staticmethod
    def forward(ctx, x):
        return x[1:], x.sum()

    @staticmethod
    def backward(ctx, grad, other):
        return F.pad(grad, (0, 0, 1, 0)) * 5 + other


class NoneGradients(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, one, other):
        return one * 7 if other is None else one + other


class EnablesGrad(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x * x
        return torch.autograd.grad(y, x, grad)[0]


BREAKING = [Logs, ReadsGlobal, Prints, Dirty, ReturnsViewOfSeveral, NoneGradients, EnablesGrad]


@every_backend
@pytest.mark.parametrize("kind", BREAKING)
def test_what_cannot_be_captured_whole_breaks_and_is_right(kind: Any, backend: str) -> None:
    global SCALE

    def f(x):
        y = kind.apply(x * 1)
        return (y[0] if isinstance(y, tuple) else y).sin()

    smelt.reset()
    compiled = smelt.compile(f, backend=backend)
    for step in range(2):
        seen = []
        for run in (f, compiled):
            x = data()
            LOG.clear()
            SCALE = 2.0
            out = run(x)
            SCALE = 3.0 + step  # before backward reads it
            out.sum().backward()
            seen.append((out.detach(), x.grad, list(LOG)))
        (expected, grad, log), (got, mine, my_log) = seen
        assert torch.allclose(got, expected) and torch.allclose(mine, grad) and my_log == log
    assert smelt.counters["graph_breaks"] >= 1  # and perhaps one more inside, where Python calls forward
    with pytest.raises(smelt.GraphBreakError, match=f"B022.*{kind.__name__}"):
        smelt.compile(f, backend=backend, fullgraph=True)(data())


@every_backend
def test_effects_of_forward_are_kept(backend: str) -> None:
    global SCALE

    def f(x):
        return LogsForward.apply(x)

    smelt.reset()
    SCALE = 2.0
    compiled = smelt.compile(f, backend=backend, fullgraph=True)
    LOG.clear()
    for count in (1, 2):
        assert torch.allclose(compiled(data()), data() * 2)
        assert list(LOG) == ["forward"] * count
    SCALE = 4.0
    assert torch.allclose(compiled(data()), data() * 4)


def test_a_wrong_number_of_gradients_is_pytorchs_error() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, grad):
            return grad

    x = data()
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        smelt.compile(lambda x: Wrong.apply(x, x + 1))(x).sum().backward()


@every_backend
def test_sizes_that_change(backend: str) -> None:
    class Mean(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x.mean(dim=-1)

        @staticmethod
        def backward(ctx, grad):
            return (grad / ctx.shape[-1]).unsqueeze(-1).expand(ctx.shape)

    smelt.reset()
    compiled = smelt.compile(lambda x: Mean.apply(x.sin()), backend=backend, fullgraph=True)
    for size in (3, 4, 5, 7):
        x = data(2, size)
        expected = torch.autograd.grad(Mean.apply(x.sin()).square().sum(), x)[0]
        torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), x)[0], expected)


KEPT: dict[str, Any] = {}


@every_backend
def test_a_context_that_is_kept_is_pytorchs(backend: str) -> None:
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            KEPT["ctx"] = ctx
            ctx.number = 5
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.number

    compiled, x = smelt.compile(lambda x: Keeps.apply(x) * 2, backend=backend), data()
    for _ in range(2):
        KEPT.clear()
        out = compiled(x)
        assert type(KEPT["ctx"]).__name__ == "KeepsBackward"
        KEPT["ctx"].number = 7
        assert torch.autograd.grad(out.sum(), x)[0].max() == 14


class Turned(Function):
    """Gradient reversal: the argument itself comes out."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x

    @staticmethod
    def backward(ctx, grad):
        return -ctx.by * grad, None


class TurnedView(Turned):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x)


class Part(Turned):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x[1:]

    @staticmethod
    def backward(ctx, grad):
        return F.pad(grad * ctx.by, (0, 0, 1, 0)), None


def _without_gradients(kind, x):
    with torch.no_grad():
        y = kind.apply(x, 2)
    return y * 2


def _written_beneath(kind, x):
    base = x * 2
    shown = kind.apply(base, 2)
    base.mul_(2)
    return shown * 1


SHOWING = {
    "used": lambda kind, x: kind.apply(x * 2, 3).sin(),
    "used, of an input": lambda kind, x: kind.apply(x, 3).sin(),
    "returned": lambda kind, x: kind.apply(x * 2, 3),
    "returned, of an input": lambda kind, x: kind.apply(x, 3),
    "a view of it returned": lambda kind, x: (kind.apply(x * 2, 3)[1:], x + 1),
    "with what it shows": lambda kind, x: (lambda y: (kind.apply(y, 3), y, y * 2))(x * 2),
    "without gradients": _without_gradients,
    "written": lambda kind, x: kind.apply(x * 2, 3).mul_(2),
    "written beneath": _written_beneath,
}


def _shown(call: Any, kind: Any, grad: bool) -> Any:
    x = data().detach().requires_grad_(grad)
    try:
        out = call(kind, x)
    except RuntimeError as error:
        return str(error)
    results = out if isinstance(out, tuple) else (out,)
    seen = [(each.requires_grad, each._is_view(), each._base is x, each is x) for each in results]
    if any(each.requires_grad for each in results):
        sum(each.sum() * (place + 1) for place, each in enumerate(results)).backward()
    return seen, [each.detach() for each in results], x.grad


@every_backend
@pytest.mark.parametrize("kind", [Turned, TurnedView, Part])
@pytest.mark.parametrize("name", SHOWING)
def test_views_and_arguments_that_come_out_have_the_derivative_that_was_written(
    kind: Any, name: str, backend: str
) -> None:
    program = SHOWING[name]
    smelt.reset()
    compiled = smelt.compile(program, backend=backend)
    for grad in (True, False):
        expected, got = _shown(program, kind, grad), _shown(compiled, kind, grad)
        if isinstance(expected, str):
            assert got == expected
        else:
            assert got[0] == expected[0]
            torch.testing.assert_close(got[1:], expected[1:])
    assert smelt.counters["graph_breaks"] == 0 or name.startswith("written")
