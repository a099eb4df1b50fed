"""Outputs that share memory and inputs that are written: after the call the world looks as after eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.autograd.joint.trace_joint import trace_forward, trace_joint
from smelt.ir.call_contract import FromInput, FromResult, SameAsOutput
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.tensorspec import TensorSpec, set_spec
from tests.autograd.helpers import aot, captured, compare, joint_of, leaves, outputs_of


def g(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def c(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def memory(value: Any) -> int:
    return value.untyped_storage().data_ptr()


def sharing(outputs: list[Any], inputs: list[torch.Tensor]) -> list[list[bool]]:
    """Who shares memory with whom, among all tensors that go in or come out."""
    everything = [value for value in [*outputs, *inputs] if isinstance(value, torch.Tensor)]
    return [[memory(one) == memory(other) for other in everything] for one in everything]


def identity(outputs: list[Any], inputs: list[torch.Tensor]) -> list[list[bool]]:
    everything = [*outputs, *inputs]
    return [[one is other for other in everything] for one in everything]


def add_and_views(x: Any) -> Any:
    y = x + 1
    return y.t(), y[0], y.detach()


def written_view_of_intermediate(x: Any) -> Any:
    y = x * 2
    v = y[1]
    v.mul_(3)
    return y, v


def counter(x: Any, n: Any) -> Any:
    n.add_(1)
    return x * n


def through_view(x: Any, buffer: Any) -> Any:
    buffer[0].add_(x.detach().sum())
    buffer.view(-1)[1:2].zero_()
    return buffer, buffer.view(-1), x * 2


def swap(x: Any, y: Any) -> Any:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x + y


CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "input itself": (lambda x: (x, x * 2), lambda: [g(3)]),
    "input itself, twice": (lambda x: (x, x), lambda: [g(3)]),
    "view of an input": (lambda x: (x.view(-1), x * 2), lambda: [g(3, 4)]),
    "chain of views of an input": (lambda x: x.t()[1:].unsqueeze(0), lambda: [g(3, 4)]),
    "part of a split of an input": (lambda x: x.split(2)[1], lambda: [g(4, 3)]),
    "all parts of a chunk": (lambda x: (x * 2).chunk(2), lambda: [g(4, 3)]),
    "detached input": (lambda x: (x.detach(), x.detach().t()), lambda: [g(3, 4)]),
    "views of an intermediate": (add_and_views, lambda: [g(3, 4)]),
    "intermediate and its view": (lambda x: ((y := x + 1), y.view(-1)), lambda: [g(3, 4)]),
    "view before its base": (lambda x: ((y := x + 1).view(-1), y), lambda: [g(3, 4)]),
    "same intermediate twice": (lambda x: ((y := x + 1), y), lambda: [g(3)]),
    "equal values in their own memory": (lambda x: (x + 1, x + 1, (x + 1).t()), lambda: [g(3, 4)]),
    "constant returned": (lambda x: (x, torch.tensor([1.0, 2.0])), lambda: [g(3)]),
    "written view of an intermediate": (written_view_of_intermediate, lambda: [g(3, 4)]),
    "view without gradient": (lambda x: ((x + 1).view(-1), x.detach() + 1), lambda: [g(3, 4)]),
    "counter": (counter, lambda: [g(3), torch.zeros((), dtype=torch.int64)]),
    "buffer written through views": (through_view, lambda: [g(3), c(2, 3)]),
    "two inputs swapped": (swap, lambda: [c(3), c(3)]),
    "expanded input": (lambda x: x.expand(3, 4), lambda: [g(3, 1)]),
    "expanded result": (lambda x: (x * 2).expand(4, 3), lambda: [g(3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_and_identity_as_in_eager(name: str) -> None:
    function, make = CASES[name]
    inputs = make()
    compare(function, inputs)
    mine_in, eager_in = leaves(inputs), leaves(inputs)
    mine, eager = outputs_of(aot(function)(*mine_in)), outputs_of(function(*eager_in))
    assert sharing(mine, mine_in) == sharing(eager, eager_in)
    assert identity(mine, mine_in) == identity(eager, eager_in)
    versions = [tensor._version for tensor in mine_in]
    assert [version > 0 for version in versions] == [tensor._version > 0 for tensor in eager_in]


@pytest.mark.parametrize("name", ["views of an intermediate", "intermediate and its view", "view of an input", "mixed"])
def test_outputs_can_be_written_afterwards(name: str) -> None:
    """In-place on an output reaches those that share its memory, and gradients know of it."""
    function, make = CASES.get(name, (lambda x: ((x + 1).t(), x.t() * 2), lambda: [g(3, 4)]))
    inputs = make()
    found = []
    for run in (aot(function), function):
        copies = leaves(inputs)
        given = [tensor * 1 for tensor in copies]
        outputs = outputs_of(run(*given))
        outputs[0].mul_(3)
        total = sum(output.sum() for output in outputs)
        found.append((outputs, torch.autograd.grad(total, copies)))
    torch.testing.assert_close(found[0], found[1])


def test_a_constant_that_is_returned_is_new_each_time() -> None:
    compiled = aot(lambda x: (x * 2, torch.tensor([1.0, 2.0])))
    compiled(g(3))[1].zero_()
    assert compiled(g(3))[1].tolist() == [1.0, 2.0]


def test_a_constant_that_is_returned_expanded() -> None:
    def function(x: Any) -> Any:
        return torch.broadcast_tensors(torch.tensor(5.0), x)[0].view(2, 2, 1)[:, :, 0], x + 1

    run, x = aot(function), c(4)
    first, second = run(x)[0], run(x)[0]
    assert first.tolist() == [[5.0, 5.0], [5.0, 5.0]] and first.stride() == (0, 0) and memory(first) != memory(second)


def test_recipes() -> None:
    joint = joint_of(lambda x, y: (x, (z := x + y).t(), z, z, x.view(-1)), g(3, 4), g(3, 4))
    first, second, third, fourth, fifth = joint.plan.outputs
    assert first == FromInput(0)
    assert isinstance(second, FromResult) and second.alias and len(second.steps) == 1
    assert third == FromResult(0) and fourth == SameAsOutput(2)
    assert isinstance(fifth, FromInput) and fifth.alias and joint.plan.results == 1


def test_inputs_that_share_memory_fall_back_when_one_is_written() -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    def run(call: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.zeros(4)
        return call(base, base[1:]), base

    torch.testing.assert_close(run(aot(function)), run(function))


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda x: x.t_() * 2, [c(2, 3)], "changes its shape or layout"),
        (lambda x: x.nonzero() * 2, [g(3)], "without data"),
        (lambda x: x[x > 0], [g(3)], "without data"),
        (lambda x: x.resize_(7) * 1, [c(3)], "."),
    ],
    ids=["layout", "nonzero", "mask index", "resize"],
)
def test_what_cannot_be_done_says_why(function: Any, inputs: list[torch.Tensor], reason: str) -> None:
    with pytest.raises(CannotTrace, match=reason):
        trace_joint(captured(function, inputs), {})


def test_a_number_out_of_a_tensor_stays_open() -> None:
    def function(x: Any) -> Any:
        return x * x.sum().item()

    compiled = aot(function)
    for x in (g(3), g(3) + 1):
        torch.testing.assert_close(compiled(x), function(x))


def test_a_write_that_gradients_flow_through_is_a_result() -> None:
    joint = joint_of(lambda x, w: (x.mul_(w), w.exp())[1], c(3), g(3))
    assert (joint.plan.mutated_inputs, joint.plan.mutated_with_grad, joint.plan.version_bumps) == ((0,), (0,), (1,))
    assert joint.plan.differentiable == (0, 1) and joint.plan.results == 1  # the exponential, then the new value


def test_a_leaf_is_written_as_eager_would() -> None:
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        aot(lambda x: x.mul_(2))(g(3))


def test_grad_mode_is_restored_after_a_failure() -> None:
    def function(x: Any) -> Any:
        torch._C._set_grad_enabled(False)
        return x.nonzero()

    with pytest.raises(CannotTrace):
        aot(function)(g(3))
    assert torch.is_grad_enabled()
    assert torch.ones(2).add(1).sum().item() == 4  # and neither fake tensors nor functionalization are left on


def test_a_written_constant_is_refused() -> None:
    constant = torch.zeros(3)
    graph = fx.Graph()
    x = graph.placeholder("x")
    set_spec(x, TensorSpec.of(c(3)))
    changed = graph.call_method("add_", (graph.get_attr("constant"), 1))
    graph.output((graph.call_function(torch.mul, (x, changed)),))
    with pytest.raises(CannotTrace, match="writes its constant"):
        trace_forward(Traced(graph, GraphLevel.TORCH, {"constant": constant}), {})
    assert constant.sum() == 0


def test_a_parameter_reached_behind_the_arguments_is_refused() -> None:
    weight = g(3)
    with pytest.raises(CannotTrace, match="without being an input"):
        aot(lambda x: x * weight)(g(3))


def test_parameter_step_under_no_grad_in_the_graph() -> None:
    """A leaf written where gradients are off keeps being that leaf, with its new value."""

    def step(p: Any, x: Any) -> Any:
        loss = (p * x).sum()
        torch._C._set_grad_enabled(False)
        p.sub_(0.1 * x)
        torch._C._set_grad_enabled(True)
        return loss

    for run in (aot(step), step):
        p, x = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        run(p, x)
        torch.testing.assert_close(p.detach(), torch.full((3,), 0.8))
        assert p.is_leaf and p.requires_grad


def test_batch_norm_says_what_it_writes() -> None:
    joint = joint_of(lambda x, m, v: F.batch_norm(x, m, v, training=True), g(4, 3), c(3), c(3))
    assert joint.plan.mutated_inputs == (1, 2)
    assert all(node.target is not torch.ops.aten.native_batch_norm.default for node in joint.traced.graph.nodes)


def test_instance_norm_says_what_it_writes() -> None:
    def function(x: Any, m: Any, v: Any) -> Any:
        return torch.instance_norm(x, None, None, m, v, True, 0.1, 1e-5, False)

    joint = joint_of(function, g(2, 3, 4), c(3), c(3))
    assert (joint.plan.mutated_inputs, joint.plan.version_bumps) == ((1, 2), (1, 1))
    compare(function, [g(2, 3, 4), c(3), c(3).abs()])


def test_running_statistics_written_behind_the_scenes_are_refused() -> None:
    def function(x: Any, m: Any, v: Any) -> Any:
        return torch.ops.aten.native_batch_norm.default(x, None, None, m, v, True, 0.1, 1e-5)[0]

    with pytest.raises(CannotTrace, match="writes running statistics"):
        trace_joint(captured(function, [g(2, 3, 4), c(3), c(3)]), {})
