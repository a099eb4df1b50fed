"""`aot_function`, `aot_module`, `aot_module_simplified`: by hand, as the seeds write them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from smelt.autograd.aot import aot_function, aot_module, aot_module_simplified
from smelt.autograd.partition import partition
from smelt.base.errors import SmeltError
from smelt.ir.graph import outputs, placeholders
from tests.autograd.helpers import Seen


def simple_fn(x: Any) -> Any:
    y = x * 2
    z = y + 1
    return z.sum()


def test_print_compilers(capsys: pytest.CaptureFixture[str]) -> None:
    def print_compiler(fx_module: fx.GraphModule, args: Any) -> fx.GraphModule:
        print(fx_module.code)
        return fx_module

    aot_fn = aot_function(simple_fn, fw_compiler=print_compiler, bw_compiler=print_compiler)
    x = torch.randn(10, requires_grad=True)
    output = aot_fn(x)
    forward = capsys.readouterr().out
    assert "mul = torch.ops.aten.mul.Tensor(primals_1, 2)" in forward and "return (sum_1,)" in forward
    output.backward()
    backward = capsys.readouterr().out
    assert (
        "def forward(self, tangents_1):" in backward and "torch.ops.aten.expand.default(tangents_1, [10])" in backward
    )
    torch.testing.assert_close(x.grad, torch.full((10,), 2.0))


def test_the_backward_is_compiled_when_first_needed_and_the_forward_once() -> None:
    forward, backward = Seen(), Seen()
    compiled = aot_function(simple_fn, forward.compiler, backward.compiler)
    x = torch.randn(10, requires_grad=True)
    out = compiled(x)
    assert (len(forward.modules), len(backward.modules)) == (1, 0)
    out.backward()
    compiled(x).backward()
    assert (len(forward.modules), len(backward.modules)) == (1, 1)


def test_compiled_again_for_other_layouts_only() -> None:
    seen = Seen()
    compiled = aot_function(lambda x, n: x * n, seen.compiler)
    compiled(torch.ones(3), 2)
    compiled(torch.ones(3), 2)
    assert len(seen.modules) == 1
    for count, (tensor, number) in enumerate(
        [
            (torch.ones(4), 2),
            (torch.ones(3), 3),
            (torch.ones(3), 2.0),
            (torch.ones(3, dtype=torch.float64), 2),
            (torch.ones(6)[::2], 2),
            (torch.ones(3, requires_grad=True), 2),
        ],
        2,
    ):
        compiled(tensor, number)
        assert len(seen.modules) == count
    with torch.no_grad():
        compiled(torch.ones(3, requires_grad=True), 2)
    assert len(seen.modules) == 8


def test_nested_arguments_and_results() -> None:
    def function(pair: Any, *, scale: Any, flags: Any) -> Any:
        return {"sum": pair[0] + pair[1]["x"] * scale, "flags": (flags, pair[0].mean())}

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled = aot_function(function, Seen().compiler)
    made = compiled((x, {"x": y}), scale=2, flags="abc")
    expected = function((x, {"x": y}), scale=2, flags="abc")
    torch.testing.assert_close(made["sum"], expected["sum"])
    assert made["flags"][0] == "abc"
    made["sum"].sum().backward()
    torch.testing.assert_close(y.grad, torch.full((3,), 2.0))


def test_a_partition_function_of_ones_own() -> None:
    """Save every input and compute the whole forward again."""
    told: list[int] = []

    def save_inputs(
        joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        told.append(num_fwd_outputs)
        nodes = placeholders(joint.graph)
        assert len(inputs) == len(nodes)
        primals = [node for node in nodes if node.name.startswith("primals")]
        values = outputs(joint.graph)
        halves = []
        for taken, wanted in ((primals, [*values[:num_fwd_outputs], *primals]), (nodes, values[num_fwd_outputs:])):
            graph, made = fx.Graph(), {}
            for node in joint.graph.nodes:
                if node.op == "placeholder" and node in taken:
                    made[node] = graph.placeholder(node.name)
                    made[node].meta = dict(node.meta)
                elif node.op == "call_function" and all(one in made for one in node.all_input_nodes):
                    made[node] = graph.node_copy(node, made.__getitem__)
            graph.output(tuple(made[node] for node in wanted))
            graph.eliminate_dead_code()
            halves.append(fx.GraphModule(joint, graph))
        return halves[0], halves[1]

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    compiled = aot_function(lambda x, w: (x @ w).sin(), Seen().compiler, partition_fn=save_inputs)
    grads = torch.autograd.grad(compiled(x, w).sum(), [x, w])
    torch.testing.assert_close(grads, torch.autograd.grad((x @ w).sin().sum(), [x, w]))
    assert told == [1]


@pytest.mark.parametrize("own", [partition.default, partition.min_cut])
def test_a_partition_function_may_call_ours(own: Any) -> None:
    def scaled(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        """Change the joint graph first: tanh becomes sigmoid, whose value both phases use."""
        for node in joint.graph.nodes:
            if node.target is torch.ops.aten.tanh.default:
                node.target = torch.ops.aten.sigmoid.default
        return own(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    x, b = torch.randn(5, requires_grad=True), torch.zeros(1)
    compiled = aot_function(lambda x, b: (x.tanh() * 3, b.add_(1))[0], Seen().compiler, partition_fn=scaled)
    out = compiled(x, b)
    torch.testing.assert_close(out, x.sigmoid() * 3)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, 3 * (1 - x.sigmoid() ** 2))
    assert b.item() == 1
    assert not aot_function(lambda x: x.detach() * 2, Seen().compiler, partition_fn=scaled)(x).requires_grad


def test_a_partition_whose_halves_do_not_meet_is_refused() -> None:
    def wrong(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        return joint, joint  # one value beyond the result, and two inputs before the tangent

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(SmeltError, match="saves 1 values, and its backward takes 2 before the tangents") as caught:
        aot_function(lambda x, y: x.sin() * y, Seen().compiler, partition_fn=wrong)(x, x.detach())
    assert caught.value.code == "SM020"


@pytest.mark.parametrize("partition_fn", [partition.default, partition.min_cut, None])
def test_decompositions_are_used(partition_fn: Any) -> None:
    def tanh(x: Any) -> Any:
        return 1 - 2 / ((x * 2).exp() + 1)

    seen = Seen()
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    compiled = aot_function(torch.tanh, seen.compiler, None, partition_fn, {torch.ops.aten.tanh.default: tanh})
    torch.testing.assert_close(compiled(x), x.tanh())
    assert "tanh" not in seen.modules[0].code and "exp" in seen.modules[0].code


def test_a_decomposition_may_decline_and_may_use_composites() -> None:
    def declined(*args: Any) -> Any:
        return NotImplemented

    def exp(x: Any) -> Any:
        return torch.matmul(x.unsqueeze(0), torch.ones_like(x).diag()).reshape(x.shape)

    seen = Seen()
    compiled = aot_function(
        lambda x: x.sin().exp(),
        seen.compiler,
        decompositions={torch.ops.aten.sin.default: declined, torch.ops.aten.exp.default: exp},
    )
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin())
    code = seen.modules[0].code
    assert "aten.sin" in code and "matmul" not in code and "reshape" not in code


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.tied = nn.Linear(6, 6)
        self.tied_too = nn.Linear(6, 6)
        self.tied_too.weight = self.tied.weight

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.tied_too(F.relu(self.tied(self.norm(self.first(x))))) * scale


def train(model: nn.Module, module: Any, state: dict[str, Any], steps: int = 3) -> tuple[list[Any], dict[str, Any]]:
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = module(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_modules_train_as_they_are() -> None:
    torch.manual_seed(0)
    model = Model()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compiled = aot_module(model, Seen().compiler, partition_fn=partition.min_cut)
    simplified = aot_module_simplified(model, [torch.randn(8, 4)], Seen().compiler)
    eager = train(model, model, state)
    torch.testing.assert_close(train(model, compiled, state), eager)
    torch.testing.assert_close(train(model, simplified, state), eager)
    assert eager[1]["norm.num_batches_tracked"] == 3
    assert isinstance(compiled, nn.Module) and {id(p) for p in compiled.parameters()} == {
        id(p) for p in model.parameters()
    }


def test_a_module_follows_train_and_eval() -> None:
    model = Model()
    compiled = aot_module(model, Seen().compiler)
    x = torch.randn(8, 4)
    compiled(x)
    model.eval()
    torch.testing.assert_close(compiled(x, scale=2.0), model(x, scale=2.0))
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_a_module_that_replaces_a_buffer_is_refused() -> None:
    class Replaces(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count = self.count + 1
            return x * self.count

    model = Replaces()
    with pytest.raises(SmeltError, match="replaces a parameter or buffer"):
        aot_module(model, Seen().compiler)(torch.ones(2))
    assert type(model.count) is torch.Tensor and model.count.item() == 0


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(SmeltError, match="SM001"):
        aot_function(3, Seen().compiler)  # type: ignore[arg-type]
    with pytest.raises(SmeltError, match="SM002"):
        aot_function(simple_fn, lambda module, examples: 3)(torch.ones(2))  # type: ignore[arg-type, return-value]


def test_gradients_of_one_result_do_not_ask_for_the_other() -> None:
    """Zeros for a result nobody used are NaN where its derivative is infinite; eager never asks."""

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, (x - x.detach()).sqrt()

    x, seen = torch.randn(3, requires_grad=True), Seen()
    aot_function(both, seen.compiler)(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    assert len(seen.modules) == 2
