"""What is saved and what is computed again; joint graphs and halves as golden text."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import smelt
from smelt.autograd.joint.trace_joint import Joint
from smelt.autograd.partition import partition
from smelt.autograd.partition.partition import ForwardBackward, saved_text
from smelt.autograd.partition.recompute import recomputable
from smelt.base import events
from smelt.ir.call_contract import Phase, phase_of
from smelt.ir.graph import GraphLevel, check_graph, format_graph
from tests.autograd.helpers import joint_of
from tests.golden import golden
from tests.targets import HOST, chosen

aten = torch.ops.aten


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def complex_computation(x: Any, weight: Any, bias: Any) -> Any:
    y = torch.relu(torch.matmul(x, weight) + bias)
    z = torch.sin(y) + torch.cos(y)
    return z.sum()


def mask(x: Any) -> Any:
    return ((x + 1) * 2).relu().sum()


def encoder_layer(x: Any, wqkv: Any, wo: Any, w1: Any, w2: Any, g: Any, b: Any) -> Any:
    parts = torch.split(F.linear(x, wqkv), 16, -1)
    heads = [parts[index].view(2, 8, 2, 8).transpose(1, 2) for index in range(3)]
    a = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(2, 8, 16)
    x = F.layer_norm(x + F.dropout(F.linear(a, wo), 0.1), (16,), g, b)
    return F.layer_norm(x + F.linear(F.gelu(F.linear(x, w1)), w2), (16,), g, b)


def batch_norm(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return F.relu(F.batch_norm(x, mean, var, w, b, training=True))


EXAMPLES: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "complex_computation": (complex_computation, lambda: [r(10, 20), r(20, 30), r(30)]),
    "mask": (mask, lambda: [r(8, 8)]),
    "sin_cos": (lambda x: x.sin().cos().sum(), lambda: [r(8)]),
    "linear_without_input_gradient": (lambda x, w: F.linear(x, w).tanh(), lambda: [torch.randn(4, 5), r(3, 5)]),
    "dropout": (lambda x: F.dropout(x.exp(), 0.5), lambda: [r(4, 4)]),
    "batch_norm": (batch_norm, lambda: [r(6, 3), torch.zeros(3), torch.ones(3), r(3), r(3)]),
    "views": (lambda x: ((y := x.exp()).t(), y[0], x.view(-1)), lambda: [r(3, 4)]),
    "encoder_layer": (
        encoder_layer,
        lambda: [r(2, 8, 16), r(48, 16), r(16, 16), r(32, 16), r(16, 32), r(16), r(16)],
    ),
}


def joint_for(name: str) -> tuple[Joint, Callable[..., Any], list[torch.Tensor]]:
    function, make = EXAMPLES[name]
    inputs = make()
    return joint_of(function, *inputs), function, inputs


def text_of(halves: ForwardBackward) -> str:
    for half in (halves.forward, halves.backward):
        if half is not None:
            check_graph(half.graph, GraphLevel.PURE)
    assert halves.backward is not None
    forward, backward = format_graph(halves.forward.graph, "forward"), format_graph(halves.backward.graph, "backward")
    return f"{forward}\n\n{saved_text(halves.plan)}\n\n{backward}"


@pytest.mark.skipif(chosen[0] != HOST, reason="the stored texts name the host")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "encoder_layer"])
def test_golden(name: str) -> None:
    joint, _, _ = joint_for(name)
    parts = [
        format_graph(joint.traced.graph, "joint"),
        "-- default\n\n" + text_of(partition.default(joint)),
        "-- min_cut\n\n" + text_of(partition.min_cut(joint)),
    ]
    golden(f"autograd/{name}.txt", "\n\n".join(parts))


def names(halves: ForwardBackward) -> list[str]:
    return [saved.name for saved in halves.plan.saved]


def calls(graph: fx.Graph) -> list[str]:
    return [
        node.target.overloadpacket.__name__ for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    ]


def test_the_seeds_example_saves_what_the_seeds_say() -> None:
    joint, _, _ = joint_for("complex_computation")
    halves = partition.default(joint)
    assert names(halves) == ["primals_1", "primals_2", "relu"]
    assert halves.backward is not None
    used = calls(halves.backward.graph)
    assert used.count("mm") == 2 and {"threshold_backward", "sum", "sin", "cos"} <= set(used)


def test_one_byte_an_element_for_relu() -> None:
    joint, _, _ = joint_for("mask")
    assert partition.min_cut(joint).plan.saved_bytes == 64
    assert partition.default(joint).plan.saved_bytes == 256


def test_min_cut_leaves_the_joint_graph_alone() -> None:
    joint, _, _ = joint_for("mask")
    before = format_graph(joint.traced.graph)
    partition.min_cut(joint)
    assert format_graph(joint.traced.graph) == before


def eager_saved_bytes(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> int:
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = function(*inputs)
    del kept
    return sum(storages.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_never_more_than_eager(name: str) -> None:
    joint, function, inputs = joint_for(name)
    eager = eager_saved_bytes(function, inputs)
    least, usual = partition.min_cut(joint).plan.saved_bytes, partition.default(joint).plan.saved_bytes
    assert least <= usual <= eager


def test_no_library_call_reduction_or_random_number_is_computed_twice() -> None:
    halves = partition.min_cut(joint_for("encoder_layer")[0])
    assert halves.backward is not None
    ahead = {node.name for node in halves.forward.graph.nodes if node.op == "call_function"}
    again = [node for node in halves.backward.graph.nodes if node.op == "call_function" and node.name in ahead]
    assert again and all(recomputable(node) is None for node in again)


def test_what_is_computed_in_both_phases_is_one_node() -> None:
    joint, _, _ = joint_for("complex_computation")
    assert calls(joint.traced.graph).count("sin") == calls(joint.traced.graph).count("cos") == 1
    (sin,) = [node for node in joint.traced.graph.nodes if node.target is aten.sin.default]
    assert phase_of(sin) is Phase.BOTH


def test_values_that_only_look_equal_are_kept_apart() -> None:
    joint = joint_of(lambda x: (x + 0.0) * (x + -0.0) * (x * 1) * (x * 1.0) * (x * True), r(3))
    forward = [node for node in joint.traced.graph.nodes if phase_of(node) is Phase.FORWARD]
    assert sum(node.target is aten.add.Tensor for node in forward) == 2


def test_random_numbers_are_never_shared() -> None:
    joint = joint_of(lambda x: F.dropout(x, 0.5) * F.dropout(x, 0.5), r(3))
    drawn = "bernoulli" if chosen[0] == HOST else "native_dropout"
    assert calls(joint.traced.graph).count(drawn) == 2


def test_nothing_dead_is_left() -> None:
    joint = joint_of(lambda x, y: (x.exp(), y.sin())[0] * 2, r(3), r(3))
    assert all(node.users or node.op in ("output", "placeholder") for node in joint.traced.graph.nodes)
    assert "detach" not in calls(joint.traced.graph) and joint.plan.gradients == (0,)


def test_views_are_saved_as_their_base() -> None:
    """Both views are read by the backward; what is kept is the one product they show."""
    joint = joint_of(lambda x, w: F.linear(x, w).t().tanh() @ F.linear(x, w).view(4, 3).sin(), r(4, 5), r(3, 5))
    for halves in (partition.default(joint), partition.min_cut(joint)):
        assert {saved.name for saved in halves.plan.saved} >= {"primals_1", "primals_2", "mm"}
        assert not any(saved.name in ("t", "t_1", "view") for saved in halves.plan.saved)


def test_a_view_that_is_read_alone_is_saved_as_its_base() -> None:
    joint = joint_of(lambda x, w, c: F.linear(x, w).t() * c, r(4, 5), r(3, 5), r(3, 4))
    for halves in (partition.default(joint), partition.min_cut(joint)):
        assert names(halves) == ["primals_1", "primals_2", "primals_3", "mm"]


def test_residual_sums_are_saved_where_they_are_used() -> None:
    """At equal bytes the cut nearest the backward wins: no chain of additions is computed again."""

    def residual(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = x + F.linear(torch.sigmoid(x), w)
        return x.sum()

    halves = partition.min_cut(joint_of(residual, r(4, 6), r(6, 6)))
    assert halves.backward is not None
    again = _names(halves.backward.graph) & _names(halves.forward.graph)
    assert again and not any(name.startswith("add") for name in again)


def _names(graph: fx.Graph) -> set[str]:
    return {node.name for node in graph.nodes if node.op == "call_function"}


def test_parameters_cost_nothing() -> None:
    """A value that costs as much as the parameter it comes from is computed again from the parameter; from another
    input it is not, as of that a copy would be kept."""
    joint = joint_of(lambda x, w: (x * w.exp()).sum(), torch.randn(5), r(5))
    assert names(partition.min_cut(joint, parameters=[1])) == ["primals_1", "primals_2"]
    assert names(partition.min_cut(joint)) == ["primals_1", "exp"]
    joint = joint_of(lambda x, w: (x.sin() * w[:, :1]).sum(), torch.randn(5, 1), r(5, 100))
    assert partition.min_cut(joint).plan.gradients == (1,)


@pytest.mark.parametrize(
    ("op", "args", "reason"),
    [
        (aten.mm.default, 2, "a library call"),
        (aten.sum.default, 1, "a reduction"),
        (aten.bernoulli.p, 1, "draws random numbers"),
        (aten.sin.default, 1, None),
        (aten.view.default, 1, None),
        (aten.full.default, 0, None),
        (aten._to_copy.default, 1, None),
    ],
)
def test_reasons(op: Any, args: int, reason: str | None) -> None:
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{index}") for index in range(args)]
    assert recomputable(graph.call_function(op, tuple(inputs))) == reason
    assert all(recomputable(node) == "an input of the graph" for node in inputs)


def test_logs_say_what_is_saved_and_why() -> None:
    with events.collect() as collected:
        partition.min_cut(joint_for("complex_computation")[0])
    by_channel = {event.channel: event.text for event in collected}
    assert set(by_channel) >= {"joint", "forward", "backward"}
    assert "saved for backward: 4400 bytes" in by_channel["forward"]
    assert "relu: f32[10, 30], 1200 bytes, cheaper to save" in by_channel["forward"]


def test_a_graph_without_differentiable_results_has_no_backward() -> None:
    halves = partition.min_cut(joint_of(lambda x: x.detach() * 2, r(3)))
    assert halves.backward is None and not halves.plan.saved and not halves.plan.tangents


def _an_input(x: Any, y: Any) -> Any:
    return y, x * y.clamp(-3, 2)


def _an_input_that_is_small(x: Any, y: Any) -> Any:
    return y, x * (y[:1, :1] + torch.zeros(20, 20)).tanh()


def _a_result(x: Any, y: Any) -> Any:
    z = x * 2
    return z, z.tanh() * y


def _a_view_of_a_result(x: Any, y: Any) -> Any:
    z = x * 2
    return z[1:], z.tanh() * y


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize(
    "function", [_an_input, _an_input_that_is_small, _a_result, _a_view_of_a_result], ids=lambda each: each.__name__
)
def test_what_eager_does_not_keep_may_be_written_before_backward(function: Callable[..., Any], backend: str) -> None:
    """The backward computed something again from what the program had written since, and PyTorch refused that."""

    def gradient(call: Callable[..., Any]) -> torch.Tensor | None:
        x, y = torch.arange(400.0).reshape(20, 20).requires_grad_(), torch.ones(20, 20)
        written, result = call(x, y)
        with torch.no_grad():
            written.add_(1)
        result.sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(smelt.compile(function, backend=backend)), gradient(function))


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_an_input_with_a_history_may_be_written_before_backward(backend: str) -> None:
    def function(x: Any, y: Any) -> Any:
        return x * (y + torch.zeros(20, 20)).tanh()

    def gradients(call: Callable[..., Any], twice: bool) -> list[torch.Tensor]:
        x, leaf = torch.arange(400.0).reshape(20, 20).requires_grad_(), torch.full((1,), 0.5, requires_grad=True)
        y = leaf * 1
        result = call(x, y)
        if not twice:
            with torch.no_grad():
                y.add_(1)
        first = torch.autograd.grad(result.sum(), [x, leaf], create_graph=twice)
        return [*first, *torch.autograd.grad(first[1].sum(), [x, leaf])] if twice else list(first)

    compiled = smelt.compile(function, backend=backend)
    for twice in (False, True):
        torch.testing.assert_close(gradients(compiled, twice), gradients(function, twice))
