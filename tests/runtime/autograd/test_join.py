"""The joined graphs inside PyTorch's autograd: hooks, freeing, version checks, accumulation, higher derivatives."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import smelt
from smelt.autograd.aot import aot_function
from smelt.autograd.joint.trace_joint import TraceSource, trace_joint
from smelt.autograd.partition import partition
from smelt.base.errors import SmeltError
from smelt.ir.call_contract import FromResult, JointPlan
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.autograd.join import _said, join
from tests.autograd.helpers import PARTITIONS, aot, leaves


def g(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def net(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(x @ w + b).sin()


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [g(4, 5), g(5, 3), g(3)]


def both(check: Callable[[Callable[..., Any]], Any], function: Callable[..., Any] = net) -> None:
    torch.testing.assert_close(check(aot(function)), check(function), rtol=1e-12, atol=1e-12)


def test_retain_graph_and_freeing() -> None:
    given = inputs()
    out = aot(net)(*given).sum()
    first = torch.autograd.grad(out, given, retain_graph=True)
    second = torch.autograd.grad(out, given)
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, given)


def test_saved_tensors_are_freed_after_backward() -> None:
    kept: list[weakref.ref[Any]] = []

    def spy(module: Any, examples: Any) -> Any:
        def run(*given: Any) -> Any:
            values = module(*given)
            kept.extend(weakref.ref(value) for value in values[1:] if not any(value is one for one in given))
            return values

        return run

    given = inputs()
    out = aot_function(net, spy, lambda module, _: module)(*given).sum()
    assert kept and all(ref() is not None for ref in kept)
    out.backward()
    gc.collect()
    assert all(ref() is None for ref in kept)


_seen: list[weakref.ref[Any]] = []
_alive: list[bool] = []


@torch.library.custom_op("smelt_tests::seen", mutates_args=())
def _see(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    _seen[:] = [weakref.ref(out)]
    return out


@torch.library.custom_op("smelt_tests::looked", mutates_args=())
def _look(x: torch.Tensor) -> torch.Tensor:
    _alive.extend(ref() is not None for ref in _seen)
    return x.clone()


@torch.library.custom_op("smelt_tests::early", mutates_args=())
def _early(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


for _op in (_see, _look, _early):
    _op.register_fake(torch.empty_like)
_see.register_autograd(lambda ctx, gradient: gradient)
_early.register_autograd(lambda ctx, gradient: _look(gradient))


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_saved_tensors_are_freed_as_the_backward_consumes_them(backend: str) -> None:
    """What the last steps of the forward saved is gone when the backward comes to the first."""

    def function(x: Any) -> Any:
        seen = torch.ops.smelt_tests.seen(torch.ops.smelt_tests.early(x) * 2)
        return seen * seen

    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    compiled(g(3))
    gc.collect()
    for retain, expected in ((True, True), (False, False)):
        _alive.clear()
        x = g(3)
        out = compiled(x).sum()
        out.backward(retain_graph=retain)
        torch.testing.assert_close(x.grad, 8 * x.detach())
        assert _alive == [expected]


def test_accumulation_and_parts_of_it() -> None:
    def check(run: Callable[..., Any]) -> Any:
        x, w, b = inputs()
        (run(x, w, b).sum() + run(x * 2, w, b).square().sum()).backward()
        run(x, w, b).sum().backward(inputs=[w])
        return x.grad, w.grad, b.grad

    both(check)


def test_hooks_fire_once_each() -> None:
    def check(run: Callable[..., Any]) -> Any:
        fired: list[str] = []

        def hook(name: str, factor: float) -> Callable[[Any], Any]:
            return lambda grad: (fired.append(name), grad * factor)[1]

        x, w, b = inputs()
        middle = x * 1
        middle.register_hook(hook("middle", 2))
        w.register_hook(hook("w", 3))
        b.register_post_accumulate_grad_hook(lambda tensor: fired.append("b"))
        out = run(middle, w, b)
        out.register_hook(hook("out", 5))
        out.sum().backward()
        assert sorted(fired) == ["b", "middle", "out", "w"]
        return x.grad, w.grad, b.grad

    both(check)


def test_hooks_fire_once_each_under_create_graph() -> None:
    def check(run: Callable[..., Any]) -> Any:
        fired: list[str] = []
        x, w, b = inputs()
        w.register_hook(lambda grad: (fired.append("w"), grad * 3)[1])
        grads = torch.autograd.grad(run(x, w, b).sum(), [x, w, b], create_graph=True)
        assert fired == ["w"]
        return grads

    both(check)


@pytest.mark.parametrize("partition_fn", PARTITIONS, ids=["default", "min_cut"])
def test_a_saved_input_changed_before_backward_is_an_error(partition_fn: Any) -> None:
    x, w, b = inputs()
    out = aot(net, partition_fn)(x, w, b).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_saved_output_changed_before_backward_is_an_error() -> None:
    x = g(5)
    out = aot(torch.exp, partition.default)(x)
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_written_input_that_backward_needs_is_saved_as_it_was() -> None:
    def function(x: Any, buffer: Any) -> Any:
        y = (buffer * 2).sin() * x
        buffer.add_(1)
        return y

    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, buffer = g(3), torch.randn(3, dtype=torch.float64)
        run(x, buffer).sum().backward()
        return x.grad, buffer

    both(check, function)


@pytest.mark.parametrize(
    "use",
    [
        lambda out: out.sum(),
        lambda out: out.t().contiguous().sum(1).sum(),
        lambda out: (out.t() * torch.arange(12, dtype=torch.float64).view(3, 4)).sum(),
        lambda out: out[1].sum(),
        lambda out: torch.linalg.norm(out),
    ],
    ids=["expanded", "transposed", "weighted", "one row", "norm"],
)
def test_tangents_of_any_layout(use: Callable[[Any], Any]) -> None:
    def check(run: Callable[..., Any]) -> Any:
        given = inputs()
        return torch.autograd.grad(use(run(*given)), given)

    both(check)


def test_tangents_are_given_in_the_traced_layout() -> None:
    strides: list[Any] = []

    def spy(module: Any, examples: Any) -> Any:
        expected = examples[-1].stride()

        def run(*given: Any) -> Any:
            strides.append((given[-1].stride(), expected))
            return module(*given)

        return run

    given = inputs()
    out = aot_function(net, lambda module, _: module, spy)(*given)
    out.sum().backward(retain_graph=True)
    out.backward(torch.ones(3, 4, dtype=torch.float64).t())
    assert [have == want for have, want in strides] == [True, True]


def test_an_output_without_gradient_counts_as_zeros() -> None:
    def function(x: Any, y: Any) -> Any:
        return x * y, x + y, y.exp()

    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, y = g(3), g(3)
        return torch.autograd.grad(run(x, y)[1].sum(), [x, y])

    both(check, function)


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    def contiguous_copy(tensor: Any) -> Any:
        return tensor.clone(memory_format=torch.contiguous_format)

    def check(run: Callable[..., Any]) -> Any:
        x, w, b = inputs()
        x = x.detach().t().contiguous().t().requires_grad_()  # saved column by column, unpacked row by row
        packed: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), contiguous_copy(t))[1], lambda t: t):
            out = run(x, w, b)
        assert packed and all(tensor.data_ptr() for tensor in packed)
        return torch.autograd.grad(out.sum(), [x, w, b])

    both(check)


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_anomaly_mode() -> None:
    given = inputs()
    with torch.autograd.set_detect_anomaly(True):
        aot(net)(*given).sum().backward()
        assert torch.is_anomaly_enabled()
        out = aot(lambda x: x.sqrt())(torch.zeros(2, requires_grad=True))
        with pytest.raises(RuntimeError, match="nan"):
            (out * 0).sum().backward()


def test_inference_has_no_graph() -> None:
    given = inputs()
    compiled = aot(net)
    with torch.no_grad():
        assert not compiled(*given).requires_grad
    assert compiled(*given).requires_grad
    plain = [tensor.detach() for tensor in given]
    assert not compiled(*plain).requires_grad


def test_everything_detached_has_no_graph() -> None:
    x = g(3)
    out, view = aot(lambda x: (x.detach() * 2, x.view(-1)))(x)
    assert out.grad_fn is None and view.grad_fn is not None


@pytest.mark.parametrize("autocast", [False, True])
def test_autocast(autocast: bool) -> None:
    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = run(x, w)
        return out, *torch.autograd.grad(out.float().sum(), [x, w])

    both(check, lambda x, w: (x @ w).relu().softmax(-1) @ w.t())


def test_the_backward_is_not_under_autocast() -> None:
    """Matrix products in the derivative of an inverse are float32, as when backward is called outside autocast."""

    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x = torch.eye(4) + 0.1 * torch.randn(4, 4)
        x.requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = run(x)
        return torch.autograd.grad(out.float().square().sum(), x)

    both(check, torch.linalg.inv)


# Derivatives of higher order.


def test_hessian_vector_product() -> None:
    def check(run: Callable[..., Any]) -> Any:
        given = inputs()
        vectors = [torch.ones_like(tensor) * 0.3 for tensor in given]
        grads = torch.autograd.grad(run(*given).sum(), given, create_graph=True)
        return torch.autograd.grad(grads, given, vectors)

    both(check)


def test_third_derivative() -> None:
    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x = g(4)
        value = run(x).sum()
        for _ in range(3):
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        return value

    both(check, lambda x: x.exp() * x.sin())


def test_gradient_penalty_through_a_non_leaf() -> None:
    def check(run: Callable[..., Any]) -> Any:
        x, w, b = inputs()
        hidden = (x * 2).tanh()
        (grad,) = torch.autograd.grad(run(hidden, w, b).sum(), hidden, create_graph=True)
        ((grad.norm() - 1) ** 2).backward()
        return x.grad, w.grad, b.grad

    both(check)


def test_second_derivative_with_aliased_outputs() -> None:
    def function(x: Any) -> Any:
        y = x.exp()
        return y.t(), y[0]

    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x = g(3, 4)
        first, second = run(x)
        (grad,) = torch.autograd.grad(first.square().sum() + second.sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)

    both(check, function)


def uses_old_value(x: Any, b: Any) -> Any:
    out = (x * (b * 2)).exp()
    b.add_(1)
    return out


SECOND: dict[str, Callable[..., Any]] = {
    "random": lambda x, b: F.dropout(x.exp(), 0.5) * F.dropout(x, 0.3),
    "random, of other distributions": lambda x, b: (torch.rand_like(x) * x.exp()) + torch.randn(4).double() * x,
    "a write nothing depends on": lambda x, b: (b.add_(1), x.exp())[1],
    "a write after use": uses_old_value,
    "batch norm": lambda x, b: F.batch_norm(x.exp().view(2, 2), b[:2], b[2:].abs(), training=True),
    "random and a write": lambda x, b: (b.add_(1), F.dropout(x.exp() * b, 0.5))[1],
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivative_with_randomness_and_writes(name: str) -> None:
    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, b = g(4), torch.randn(4, dtype=torch.float64)
        out = run(x, b)
        state = torch.get_rng_state()
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        assert torch.equal(state, torch.get_rng_state())  # computing again leaves no trace
        (again,) = torch.autograd.grad(grad.square().sum(), x)
        return out, grad, again, b

    both(check, SECOND[name])


def test_second_derivative_through_a_written_input() -> None:
    def function(x: Any, w: Any) -> Any:
        x.mul_(w)
        x.sin_()
        return x.exp()

    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        leaf, w = g(4), g(4)
        x = leaf.sinh()
        out = run(x, w)
        grads = torch.autograd.grad(out.sum() + x.square().sum(), [leaf, w], create_graph=True)
        seconds = torch.autograd.grad(sum(grad.square().sum() for grad in grads), [leaf, w], create_graph=True)
        return out, x, grads, seconds, torch.autograd.grad(sum(grad.sum() for grad in seconds), [leaf, w])

    both(check, function)


def test_second_derivative_with_a_generator_of_its_own_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    x = g(4)

    def call(inputs: Any, constants: Any) -> list[Any]:
        return [inputs[0].exp() * torch.rand(4, generator=generator)]

    joint = trace_joint(TraceSource((TensorSpec.of(x),), ("x",), call, {}))
    assert isinstance(joint.replay, str) and "its device's default" in joint.replay


def test_second_derivative_of_what_no_gradient_flows_to() -> None:
    """Reflections of nothing: PyTorch's formula has no gradient for them at all."""
    x, tau = torch.zeros(0, 0, requires_grad=True), torch.zeros(0, requires_grad=True)
    for run in (aot(torch.linalg.householder_product), torch.linalg.householder_product):
        out = run(x, tau)
        grads = torch.autograd.grad(out, [x, tau], torch.zeros(0, 0), create_graph=True, allow_unused=True)
        assert grads == (None, None)


def test_second_derivative_after_inputs_it_does_not_depend_on_are_gone_or_changed() -> None:
    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, b = g(4), g(4)
        out = run(x, torch.randn(4, dtype=torch.float64), b).sum()
        gc.collect()
        with torch.no_grad():
            b.add_(1)
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        return grad, torch.autograd.grad(grad.sum(), x)

    both(check, lambda x, y, b: x.exp() + y * 0.5 + b)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_second_derivative_after_a_computed_input_is_gone(backend: str) -> None:
    """Nothing depends on its value, but gradients flow through it."""

    def line(x: Any) -> Any:
        return (x + 1) * 3

    def check(run: Callable[..., Any]) -> Any:
        x = torch.arange(4.0, requires_grad=True)
        out = run(x * 2)
        gc.collect()
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return grad, torch.autograd.grad(grad.square().sum(), x)

    torch.testing.assert_close(check(smelt.compile(line, backend=backend)), check(line))


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_second_derivative_for_leaves_found_by_their_edges(backend: str) -> None:
    """They are not kept track of: the node that accumulates each one's gradient has it, also if nobody else does."""

    def line(x: Any, y: Any) -> Any:
        return (x + 1) * 3 - y

    def check(run: Callable[..., Any]) -> Any:
        x, y = torch.arange(4.0, requires_grad=True), torch.ones(2, 4, requires_grad=True)
        out = run(x, y)
        found = {node.variable.dim(): node.variable for node, _ in run_edges(out)}
        del x, y
        gc.collect()
        grads = torch.autograd.grad(out.square().sum(), [found[1], found[2]], create_graph=True)
        return grads, torch.autograd.grad(sum(grad.square().sum() for grad in grads), [found[1], found[2]])

    def run_edges(out: Any) -> list[Any]:
        met, todo = [], [out.grad_fn]
        while todo:
            for node, number in todo.pop().next_functions:
                if hasattr(node, "variable"):
                    met.append((node, number))
                elif node is not None:
                    todo.append(node)
        return met

    torch.testing.assert_close(check(smelt.compile(line, backend=backend)), check(line))


def test_second_derivative_without_the_data_is_an_error() -> None:
    """Data of which the backward needs something smaller is not kept for a derivative nobody may ask for."""
    x = g(4)
    out = aot(lambda x, y: x.exp() * (y > 0))(x, torch.randn(4, dtype=torch.float64)).sum()
    gc.collect()
    with pytest.raises(SmeltError, match="was freed"):
        torch.autograd.grad(out, x, create_graph=True)


def test_second_derivative_after_a_needed_input_changed_is_an_error() -> None:
    x, b = g(4), g(4)
    out = aot(lambda x, b: (x + b).exp(), partition.default)(x, b).sum()
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out, x, create_graph=True)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_second_derivative_through_graphs_that_break(backend: str) -> None:
    """Between two graphs lie values that nobody holds once the call is over; PyTorch frees them with what is saved."""

    def critic(x: Any, w: Any) -> Any:
        h = torch.relu(x @ w)
        smelt.graph_break()
        h = torch.relu(h + (h @ w).tanh())
        smelt.graph_break()
        return (torch.relu(h + 1) @ w).sum()

    def check(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, w = g(4, 4), g(4, 4)
        (grad,) = torch.autograd.grad(run(x, w), x, create_graph=True)
        ((grad.norm(dim=1) - 1) ** 2).mean().backward()
        return grad, x.grad, w.grad

    torch.testing.assert_close(check(smelt.compile(critic, backend=backend)), check(critic), rtol=1e-12, atol=1e-12)


def test_what_is_kept_between_graphs_is_in_no_circle_and_does_not_outlive_the_backward() -> None:
    compiled = aot(lambda h: torch.relu(h + 1))
    compiled(g(4) * 2)
    for ends in ("dropped", "backward"):
        x = g(4)
        h = x * 2
        memory = weakref.ref(h)
        out = compiled(h)
        h.add_(out)  # its history leads to the graph that keeps it
        total = h.sum()
        if ends == "backward":
            total.backward()
            torch.testing.assert_close(x.grad, 2 + 2 * (2 * x.detach() + 1 > 0).double())
        else:
            del total
        del h, out
        assert memory() is None


# What only eager can do.


def test_forward_mode_and_function_transforms_run_eagerly() -> None:
    given = inputs()
    plain = [tensor.detach() for tensor in given]
    vectors = [torch.full_like(tensor, 0.5) for tensor in plain]
    for run in (aot(net), net):
        run(*given), run(*plain)
        with forward_ad.dual_level():
            dual = [forward_ad.make_dual(x, v) for x, v in zip(plain, vectors, strict=True)]
            tangent = forward_ad.unpack_dual(run(*dual)).tangent
        expected = torch.autograd.functional.jvp(net, tuple(plain), tuple(vectors))[1]
        torch.testing.assert_close(tangent, expected)
        rows = torch.func.vmap(run, in_dims=(0, None, None))(*plain)
        torch.testing.assert_close(rows, net(*plain))
        gradient = torch.func.grad(lambda x, run=run: run(x, *plain[1:]).sum())(plain[0])
        torch.testing.assert_close(gradient, torch.autograd.grad(net(*given).sum(), given[0])[0])


# The wrapper alone.


def test_a_backward_is_made_when_first_needed() -> None:
    made: list[int] = []

    def make(arrived: int) -> Callable[..., Any]:
        made.append(arrived)
        return lambda tangent: (tangent * 3,)

    spec = TensorSpec.of(torch.ones(2))
    plan = JointPlan(
        inputs=1, outputs=(FromResult(0),), results=1, differentiable=(0,), tangents=(spec,), gradients=(0,)
    )
    call = join(lambda x: (x * 3,), make, plan)
    x = torch.ones(2, requires_grad=True)
    (y,), (z,) = call(x), call(x)
    assert not made
    (y + z).sum().backward()
    assert made == [1]
    torch.testing.assert_close(x.grad, torch.full((2,), 6.0))


def test_a_plan_with_tangents_needs_a_backward() -> None:
    plan = JointPlan(
        inputs=1, outputs=(FromResult(0),), results=1, differentiable=(0,), tangents=(TensorSpec.of(torch.ones(2)),)
    )
    with pytest.raises(ValueError, match="needs a backward"):
        join(lambda x: (x,), None, plan)


def test_inputs_are_not_changed_by_comparison() -> None:
    """The helper's copies are independent, or every test above would compare a thing with itself."""
    (x,) = inputs()[:1]
    (copy,) = leaves([x])
    with torch.no_grad():
        copy.add_(1)
    assert not torch.equal(copy, x)


def test_a_tangent_that_is_negated_lazily() -> None:
    """Gradients of imaginary parts may arrive with their sign still to be applied; kernels would not see it."""
    signs: list[bool] = []

    def spy(module: Any, examples: Any) -> Any:
        def run(*given: Any) -> Any:
            signs.append(given[-1].is_neg())
            return module(*given)

        return run

    x = g(4)
    out = aot_function(lambda x: x * 2, lambda module, _: module, spy)(x)
    lazily_negated = torch._neg_view(torch.ones(4, dtype=torch.float64))
    assert lazily_negated.is_neg() and lazily_negated.stride() == (1,)
    (grad,) = torch.autograd.grad(out, x, lazily_negated)
    torch.testing.assert_close(grad, torch.full((4,), -2.0, dtype=torch.float64))
    assert signs == [False]


def test_unpacked_tensors_are_given_in_the_traced_layout() -> None:
    """Hooks may hand back other strides than they were given: `save_on_cpu` does."""
    strides: list[tuple[Any, Any]] = []

    def spy(module: Any, examples: Any) -> Any:
        def run(*given: Any) -> Any:
            strides.extend((have.stride(), want.stride()) for have, want in zip(given, examples, strict=True))
            return module(*given)

        return run

    x, w = torch.randn(5, 4).t().requires_grad_(), torch.randn(5, 3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(), lambda t: t):
        out = aot_function(lambda x, w: (x @ w).sin(), lambda module, _: module, spy)(x, w)
    out.sum().backward()
    assert strides and all(have == want for have, want in strides)


def test_new_values_that_are_other_inputs_are_not_lost() -> None:
    """A simplified graph may hand back its inputs as each other's new values."""
    plan = JointPlan(inputs=2, outputs=(), results=0, mutated_inputs=(0, 1), version_bumps=(1, 1))
    x, y = torch.zeros(3), torch.ones(3)
    assert join(lambda x, y: (y, x), None, plan)(x, y) == ()
    assert (x.sum().item(), y.sum().item()) == (3.0, 0.0)


class TwoHeads(torch.nn.Module):
    """As an encoder whose pooler nobody asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = (torch.nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(x).relu()
        return self.first(hidden), self.second(hidden)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_a_result_nobody_uses_gives_no_gradient(backend: str, used: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain, twin, x = TwoHeads(), TwoHeads(), torch.randn(2, 3)
    twin.load_state_dict(plain.state_dict())
    compiled = smelt.compile(twin, backend=backend)
    for model in (plain, compiled):
        outputs = model(x)
        torch.stack([outputs[number].square().sum() for number in used]).sum().backward()
    for mine, theirs in zip(twin.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad)


def apart(x: Any, y: Any) -> Any:
    return (x * x).sum(), (y * y).sum()


def sharing(x: Any, y: Any) -> Any:
    hidden = x.exp()
    return hidden.sum(), (hidden * y).sum()


def with_nothing_saved(x: Any, y: Any) -> Any:
    return (x * x).sum(), x - y


@pytest.mark.parametrize("program", [apart, sharing, with_nothing_saved])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (1, 1, 0), (0, 1, 1)])
def test_each_result_has_its_backward_as_in_eager(program: Any, order: tuple[int, ...]) -> None:
    """A backward frees what it used, and no more: results that share nothing saved have one each."""

    def outcome(function: Any) -> tuple[list[str], list[Any]]:
        x, y = (torch.arange(1.0, 7.0, requires_grad=True) for _ in range(2))
        results, said = function(x, y), []
        for number in order:
            try:
                results[number].sum().backward()
                said.append("done")
            except RuntimeError as error:
                said.append(str(error))
        return said, [x.grad, y.grad]

    (mine, gradients), (theirs, expected) = outcome(smelt.compile(program, backend="aot_eager")), outcome(program)
    assert mine == theirs
    if set(theirs) != {"done"}:
        return  # an engine that stops half way has given some gradients, others than one that does not start
    for one, other in zip(gradients, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def test_what_no_other_result_may_use_is_freed_at_once() -> None:
    x, y = (torch.arange(1.0, 7.0, requires_grad=True) for _ in range(2))
    first, _ = smelt.compile(sharing, backend="aot_eager")(x, y)
    first.backward()
    with pytest.raises(RuntimeError, match="second time"):
        first.grad_fn.saved_tensors  # noqa: B018
    assert not vars(first.grad_fn).get("left")


def test_what_is_left_for_another_backward_is_watched() -> None:
    x, y = (torch.arange(1.0, 7.0, requires_grad=True) for _ in range(2))
    first, second = smelt.compile(apart, backend="aot_eager")(x, y)
    first.backward()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_an_infinite_derivative_of_what_is_not_used_does_no_harm(backend: str) -> None:
    x = torch.zeros(3, requires_grad=True)
    used, _ = smelt.compile(lambda x: (x * 2, x.sqrt()), backend=backend)(x)
    used.sum().backward()
    assert x.grad is not None and x.grad.eq(2).all()


@torch.library.custom_op("smelt_tests::misdescribed", mutates_args=())
def _misdescribed(x: torch.Tensor) -> torch.Tensor:
    return x.double()


_misdescribed.register_fake(torch.empty_like)
_misdescribed.register_autograd(lambda ctx, gradient: gradient.float())


@pytest.mark.parametrize("grad", [False, True])
def test_running_eagerly_at_every_call_is_said_once(grad: bool) -> None:
    _said.clear()
    compiled = smelt.compile(lambda x: torch.ops.smelt_tests.misdescribed(x * 2) + 1)
    x = torch.ones(3, requires_grad=grad)
    with pytest.warns(smelt.SmeltWarning, match="SM023.*misdescribed.*eager PyTorch instead") as said:
        assert compiled(x).dtype is torch.float64
        assert torch.equal(compiled(x), torch.full((3,), 3.0, dtype=torch.float64))
    assert len(said) == 1
