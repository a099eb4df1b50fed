"""The guides on ahead-of-time autograd: forward and backward graphs that can be read, split and compiled by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.base.events import collect

aten = torch.ops.aten


class Kept:
    """A "compiler" that keeps the graph it was handed and runs it as it is."""

    def __init__(self) -> None:
        self.modules: list[fx.GraphModule] = []

    def __call__(self, module: fx.GraphModule, args: Sequence[Any]) -> fx.GraphModule:
        self.modules.append(module)
        return module

    @property
    def targets(self) -> list[Any]:
        (module,) = self.modules
        return [node.target for node in module.graph.nodes if node.op == "call_function"]

    @property
    def inputs(self) -> int:
        (module,) = self.modules
        return sum(node.op == "placeholder" for node in module.graph.nodes)

    @property
    def outputs(self) -> int:
        (module,) = self.modules
        return len(module.graph.output_node().args[0])  # type: ignore[arg-type]


def simple_fn(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y + 1
    return z.sum()


def complex_computation(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = torch.matmul(x, weight) + bias
    y = torch.relu(y)
    z = torch.sin(y) + torch.cos(y)
    loss = z.sum()
    return loss


def pointwise(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    b = a * 2
    c = b.relu()
    return c.sum()


def test_the_simple_function_gives_two_graphs_and_twos_for_gradient() -> None:
    forward, backward = Kept(), Kept()
    aot_fn = smelt.aot_function(simple_fn, fw_compiler=forward, bw_compiler=backward)
    x = torch.randn(10, requires_grad=True)
    output = aot_fn(x)
    torch.testing.assert_close(output, simple_fn(x))
    assert forward.targets == [aten.mul.Tensor, aten.add.Tensor, aten.sum.default]
    output.backward()
    assert torch.equal(x.grad, torch.full((10,), 2.0))  # type: ignore[arg-type]
    assert aten.expand.default in backward.targets and aten.mul.Tensor in backward.targets
    assert backward.inputs == 1  # the gradient of the output: nothing had to be saved


def test_the_graphs_are_code_one_can_read() -> None:
    forward, backward = Kept(), Kept()
    smelt.aot_function(simple_fn, forward, backward)(torch.randn(10, requires_grad=True)).backward()
    assert "torch.ops.aten.mul.Tensor" in forward.modules[0].code
    assert "torch.ops.aten.expand" in backward.modules[0].code


def test_the_network_like_function_has_the_guides_graphs() -> None:
    forward, backward = Kept(), Kept()
    compiled_fn = smelt.aot_function(complex_computation, fw_compiler=forward, bw_compiler=backward)
    x = torch.randn(10, 20, requires_grad=True)
    weight = torch.randn(20, 30, requires_grad=True)
    bias = torch.randn(30, requires_grad=True)
    output = compiled_fn(x, weight, bias)
    output.backward()
    assert forward.targets == [
        aten.mm.default,
        aten.add.Tensor,
        aten.relu.default,
        aten.sin.default,
        aten.cos.default,
        aten.add.Tensor,
        aten.sum.default,
    ]
    assert (forward.inputs, forward.outputs) == (3, 4)  # the sum, and x, weight, relu kept
    assert (backward.inputs, backward.outputs) == (4, 3)
    assert "return (sum_1, primals_1, primals_2, relu)" in forward.modules[0].code
    assert backward.targets == [  # as printed there, less the calls of detach, which mean nothing to a pure graph
        aten.expand.default,
        aten.sin.default,
        aten.neg.default,
        aten.mul.Tensor,
        aten.cos.default,
        aten.mul.Tensor,
        aten.add.Tensor,
        aten.threshold_backward.default,
        aten.sum.dim_IntList,
        aten.view.default,
        aten.t.default,
        aten.mm.default,
        aten.t.default,
        aten.mm.default,
    ]
    expected = torch.autograd.grad(complex_computation(x, weight, bias), (x, weight, bias))
    for have, want in zip((x.grad, weight.grad, bias.grad), expected, strict=True):
        torch.testing.assert_close(have, want)
    assert (x.grad.shape, weight.grad.shape, bias.grad.shape) == ((10, 20), (20, 30), (30,))  # type: ignore[union-attr]


def test_the_backward_is_made_before_backward_is_called() -> None:
    with collect() as events:
        loss = smelt.compile(simple_fn)(torch.randn(10, requires_grad=True))
    assert any(event.channel == "backward" for event in events)
    loss.backward()


def test_one_compilation_serves_a_thousand_rounds() -> None:
    compiled_fn = smelt.compile(lambda x: ((x + 1) * 2).mean())
    x = torch.randn(10, requires_grad=True)
    for _ in range(1000):
        loss = compiled_fn(x)
        loss.backward()
    assert smelt.counters["graphs"] == 1 and smelt.counters["joint_graphs"] == 1
    torch.testing.assert_close(x.grad, torch.full((10,), 200.0), rtol=1e-4, atol=0)


class SimpleModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.weight).sum()


def test_a_module_with_its_parameters() -> None:
    model = SimpleModel()
    input_data = torch.randn(10)
    forward, backward = Kept(), Kept()
    compiled_model = smelt.aot_module_simplified(model, (input_data,), fw_compiler=forward, bw_compiler=backward)
    output = compiled_model(input_data)
    torch.testing.assert_close(output, model(input_data))
    output.backward()
    torch.testing.assert_close(model.weight.grad, input_data[:, None].expand(10, 10))
    assert len(forward.modules) == len(backward.modules) == 1


def saved_bytes(function: Callable[..., Any], *args: Any) -> int:
    smelt.reset()
    smelt.compile(function)(*args)
    return smelt.counters["saved_bytes"]


def test_relu_saves_a_mask_or_less_not_three_tensors() -> None:
    x = torch.randn(1000, requires_grad=True)
    assert saved_bytes(pointwise, x) <= x.numel() * x.element_size()  # at most what is there already: the input
    got = torch.autograd.grad(smelt.compile(pointwise)(x), x)[0]
    torch.testing.assert_close(got, torch.autograd.grad(pointwise(x), x)[0])


def test_affine_steps_save_nothing() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        b = a * 2
        c = b + 3
        d = c * 4
        return d.sum()

    x = torch.randn(100, requires_grad=True)
    assert saved_bytes(forward, x) == 0
    smelt.compile(forward)(x).backward()
    torch.testing.assert_close(x.grad, torch.full((100,), 8.0))


def test_a_cheap_sine_is_computed_again_not_saved() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        z = y * 2
        return z.sum()

    x = torch.randn(300, 300, requires_grad=True)
    assert saved_bytes(forward, x) <= x.numel() * x.element_size()  # the input is enough
    smelt.compile(forward)(x).backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x.detach()))


def test_six_kernels_become_one_forward_and_one_backward() -> None:
    def fused(x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        b = a * 2
        return torch.sin(b)

    x = torch.randn(50, requires_grad=True)
    with collect() as events:
        smelt.compile(fused)(x).sum().backward()
    programs = [event.subject for event in events if event.channel == "kernels"]
    assert [len(program.kernels) for program in programs] == [1, 1]  # type: ignore[attr-defined]
    torch.testing.assert_close(x.grad, 2 * torch.cos((x.detach() + 1) * 2))


def test_the_rules_for_addition_and_matrix_products() -> None:
    first, second = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    smelt.compile(lambda a, b: a + b)(first, second).backward(torch.ones(3))
    assert torch.equal(first.grad, torch.ones(3)) and torch.equal(second.grad, torch.ones(3))  # type: ignore[arg-type]
    x, weight = torch.randn(4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    tangent = torch.randn(4, 6)
    smelt.compile(lambda x, weight: x @ weight)(x, weight).backward(tangent)
    torch.testing.assert_close(x.grad, tangent @ weight.detach().T)
    torch.testing.assert_close(weight.grad, x.detach().T @ tangent)


def custom_partition(joint: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int) -> Any:
    """The guide's own: what needs a tangent is backward, and what of the rest the backward reads is saved."""
    values: Any = joint.graph.output_node().args[0]
    backward_nodes: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.name.startswith("tangents") or any(one in backward_nodes for one in node.all_input_nodes):
            backward_nodes.add(node)
    backward_nodes.discard(joint.graph.output_node())
    forward_nodes = [n for n in joint.graph.nodes if n.op != "output" and n not in backward_nodes]
    wanted = values[num_fwd_outputs:]
    saved = [n for n in forward_nodes if n in wanted or any(user in backward_nodes for user in n.users)]
    tangents = [n for n in backward_nodes if n.op == "placeholder"]
    computed = [n for n in joint.graph.nodes if n in backward_nodes and n.op != "placeholder"]
    forward = part(joint, [], forward_nodes, (*values[:num_fwd_outputs], *saved))
    return forward, part(joint, [*saved, *tangents], computed, wanted)


def part(joint: fx.GraphModule, inputs: list[fx.Node], nodes: list[fx.Node], wanted: Sequence[fx.Node]) -> Any:
    """A graph of `nodes` that takes `inputs` and yields `wanted`."""
    graph, made = fx.Graph(), {}
    for node in inputs:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in wanted))
    return fx.GraphModule(joint, graph)


def test_a_partition_of_ones_own() -> None:
    forward, backward = Kept(), Kept()
    x = torch.randn(10, requires_grad=True)
    compiled = smelt.aot_function(lambda x: (torch.sin(x) * 2).sum(), forward, backward, partition_fn=custom_partition)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x.detach()))
    assert forward.outputs == 2 and backward.inputs == 2  # x is what the backward reads


class ModelWithCheckpoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expensive_layer1 = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.expensive_layer2 = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.cheap_layer = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.expensive_layer1, x, use_reentrant=False)
        x = checkpoint(self.expensive_layer2, x, use_reentrant=False)
        x = self.cheap_layer(x)
        return x


def test_checkpoints_keep_their_gradients() -> None:
    model = ModelWithCheckpoint()
    x = torch.randn(3, 6, requires_grad=True)
    wanted = [x, *model.parameters()]
    expected = torch.autograd.grad(model(x).square().sum(), wanted)
    compiled = smelt.compile(model)
    for _ in range(2):
        got = torch.autograd.grad(compiled(x).square().sum(), wanted)
        for have, want in zip(got, expected, strict=True):
            torch.testing.assert_close(have, want)


class LargeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(10)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def test_a_deep_model_saves_less_than_eager_and_has_its_gradients() -> None:
    model = LargeModel()
    x = torch.randn(32, 64)
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).sum()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    assert saved_bytes(model, x) <= sum(kept.values())
    got = torch.autograd.grad(smelt.compile(model)(x).sum(), list(model.parameters()))
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [5])
def test_the_training_loop_of_the_chapter(steps: int) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    compiled = smelt.compile(model)
    optimizer = torch.optim.Adam(compiled.parameters(), lr=0.01)
    x, y = torch.randn(20, 16), torch.randint(0, 10, (20,))
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert smelt.counters["graphs"] == 1
