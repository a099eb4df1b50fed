"""Compiled models inside a training loop that looks on: hooks, retained graphs, parts of gradients, anomaly mode.

Each scene is played eagerly and compiled and must tell the same story, in the same order.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import graph

import smelt

BACKENDS = ["aot_eager", "llvm"]
Told = list[Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.tanh(self.norm(self.first(x))))
        return y


def shown(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def hooks_on_tensors(run: Any, net: Net, x: torch.Tensor) -> Told:
    told: Told = []
    middle = x * 2
    middle.register_hook(lambda grad: told.append(("input", shown(grad))))
    middle.retain_grad()
    net.first.weight.register_hook(lambda grad: told.append(("weight", shown(grad))))
    net.second.bias.register_post_accumulate_grad_hook(lambda p: told.append(("accumulated", shown(p.grad))))
    out = run(middle)
    out.register_hook(lambda grad: told.append(("output", shown(grad))))
    out.register_hook(lambda grad: grad * 2)
    out.retain_grad()
    out.square().sum().backward()
    order = [name for name, _ in told]
    assert order[0] == "output"
    return [*sorted(told, key=lambda pair: str(pair[0])), middle.grad, out.grad]


def hooks_of_modules(run: Any, net: Net, x: torch.Tensor) -> Told:
    told: Told = []
    net.register_forward_pre_hook(lambda module, args: told.append(("pre", shown(args[0]))))
    net.register_forward_hook(lambda module, args, out: told.append(("forward", shown(out))))
    net.register_full_backward_hook(lambda module, into, out: told.append(("backward", shown(out[0]))))
    net.norm.register_full_backward_hook(lambda module, into, out: told.append(("inside", shown(into[0]))))
    run(x).square().sum().backward()
    return told


def several_at_once(run: Any, net: Net, x: torch.Tensor) -> Told:
    told: Told = []
    parameters = [net.first.weight, net.second.weight]
    handle = graph.register_multi_grad_hook(parameters, lambda grads: told.append([shown(g) for g in grads]))
    run(x).sum().backward()
    handle.remove()
    run(x).sum().backward()
    return told


def accumulated(run: Any, net: Net, x: torch.Tensor) -> Told:
    for part in x.split(2):
        run(part).square().mean().backward()
    run(x).sum().backward(inputs=[net.first.weight, x])
    return [x.grad]


def parts_of_gradients(run: Any, net: Net, x: torch.Tensor) -> Told:
    out = run(x)
    (only,) = torch.autograd.grad(out.sum(), net.norm.weight, retain_graph=True)
    batch = torch.autograd.grad(out, x, torch.eye(3).repeat(1, 2)[:, :6].t().contiguous(), retain_graph=True)
    unused = torch.zeros(2, requires_grad=True)
    both = torch.autograd.grad(out.sum(), [unused, x], allow_unused=True, retain_graph=True)
    torch.autograd.backward([out.sum(), out.square().sum()])
    return [only, *batch, *both, x.grad]


def a_second_time(run: Any, net: Net, x: torch.Tensor) -> Told:
    out = run(x).square().sum()
    out.backward(retain_graph=True)
    out.backward()
    try:
        out.backward()
    except RuntimeError as error:
        return [x.grad, str(error)]
    raise AssertionError("a third backward went through")


def kept_elsewhere(run: Any, net: Net, x: torch.Tensor) -> Told:
    packed: list[int] = []

    def pack(tensor: torch.Tensor) -> Any:
        packed.append(tensor.numel())
        return tensor.to(torch.float64).cpu().numpy()

    with graph.saved_tensors_hooks(pack, lambda array: torch.from_numpy(array).to(x.device, torch.float32)):
        run(x).square().sum().backward()
    assert packed
    with graph.save_on_cpu():
        run(x).sum().backward()
    return [x.grad]


def not_to_be_kept(run: Any, net: Net, x: torch.Tensor) -> Told:
    try:
        with graph.disable_saved_tensors_hooks("not here"), graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            run(x)
    except RuntimeError as error:
        return [str(error)]
    raise AssertionError("hooks were set although they are switched off")


def anomalous(run: Any, net: Net, x: torch.Tensor) -> Told:
    with torch.autograd.set_detect_anomaly(True):
        run(x).sum().backward()
        out = run(x)
        try:
            (out.sum() * torch.tensor(0.0).log()).backward()
        except RuntimeError as error:
            return [x.grad, "nan values" in str(error)]
    raise AssertionError("nan went through")


def changed_weight(run: Any, net: Net, x: torch.Tensor) -> Told:
    out = run(x).square().sum()
    with torch.no_grad():
        net.second.weight.add_(1)
    try:
        out.backward()
    except RuntimeError as error:
        return [str(error).split(":")[0]]
    raise AssertionError("a weight that the backward needs was changed, and nobody noticed")


SCENES: list[Callable[[Any, Net, torch.Tensor], Told]] = [
    hooks_on_tensors, hooks_of_modules, several_at_once, accumulated, parts_of_gradients, a_second_time,
    kept_elsewhere, not_to_be_kept, anomalous, changed_weight,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Error detected in", "ignore:Anomaly Detection")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_same_story(scene: Callable[[Any, Net, torch.Tensor], Told], backend: str) -> None:
    graph_reports = []
    for compiled in (True, False):
        torch.manual_seed(0)
        net = Net()
        x = torch.randn(6, 4, requires_grad=True)
        run = smelt.compile(net, backend=backend) if compiled else net
        told = scene(run, net, x)
        graph_reports.append((told, [parameter.grad for parameter in net.parameters()]))
    assert [len(told) for told, _ in graph_reports[:1]] == [len(told) for told, _ in graph_reports[1:]]
    torch.testing.assert_close(flat(graph_reports[0]), flat(graph_reports[1]), rtol=1e-5, atol=1e-6)
    assert words(graph_reports[0]) == words(graph_reports[1])


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, tuple | list) else []


def words(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [word for item in value for word in words(item)]
    return [] if isinstance(value, torch.Tensor) else [value]


@pytest.mark.parametrize("backend", BACKENDS)
def test_numerical_derivatives(backend: str) -> None:
    """PyTorch's own check of first and second derivatives against differences."""
    torch.manual_seed(0)
    net = Net().double()
    compiled = smelt.compile(lambda x, w: torch.tanh(net(x)) * w.sin(), backend=backend)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compiled, (x, w))
    assert torch.autograd.gradgradcheck(compiled, (x, w))
