"""Recurrent layers by cuDNN, one call for all layers and steps: here something on the host stands for cuDNN.

What stands for it keeps a workspace of a size that nobody is told, as cuDNN does.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.base.options import config
from smelt.capture import BreakRecord
from smelt.ir.nodes import cudnn_recurrent
from smelt.ir.nodes.cudnn_recurrent import Layers
from smelt.meta import recurrent_layers

RESERVE = 17
runs: list[str] = []  # what was asked of it, in order
NOT_IN_TRAINING = "cudnn RNN backward can only be called in training mode"


def laid_out(value: torch.Tensor, layers: Layers) -> torch.Tensor:
    return value.transpose(0, 1).contiguous().transpose(0, 1) if layers.batch_first else value.contiguous()


def run(layers: Layers, input: torch.Tensor, hx: Any, weights: Any) -> tuple[torch.Tensor, ...]:
    runs.append("forward")
    with torch.no_grad():
        output, *states = layers.call(input, hx, weights)
    states += [torch.empty(0)] * (2 - len(states))
    flat, none = torch.cat([each.flatten() for each in weights]), torch.empty(0, dtype=torch.uint8)
    reserve = torch.arange(RESERVE, dtype=torch.uint8) if layers.train else none
    return laid_out(output, layers), *states, reserve, flat, none


def run_backward(
    layers: Layers,
    grads: Sequence[torch.Tensor | None],
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    output: torch.Tensor,
    workspaces: Sequence[torch.Tensor],
    wanted: Sequence[bool],
) -> list[torch.Tensor | None]:
    runs.append("backward")
    if not layers.train:
        raise RuntimeError(NOT_IN_TRAINING)
    reserve, flat, _ = workspaces
    assert torch.equal(reserve, torch.arange(RESERVE, dtype=torch.uint8))
    assert torch.equal(flat, torch.cat([each.flatten() for each in weights]))
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        reserve.zero_()
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in (input, *hx, *weights)]
        made = layers.call(leaves[0], leaves[1 : 1 + len(hx)], leaves[1 + len(hx) :])
        pairs = [(value, grad) for value, grad in zip(made, grads, strict=False) if grad is not None]
        return list(torch.autograd.grad([value for value, _ in pairs], leaves, [grad for _, grad in pairs]))


@pytest.fixture(autouse=True)
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "suppress_errors", False)
    monkeypatch.setattr(cudnn_recurrent, "run", run)
    monkeypatch.setattr(cudnn_recurrent, "run_backward", run_backward)
    monkeypatch.setattr(recurrent_layers, "is_for_cudnn", lambda input: torch._C._get_cudnn_enabled())
    smelt.reset()
    runs.clear()


Made = tuple[nn.Module, tuple[Any, ...]]
MODULES: dict[str, Callable[[], Made]] = {
    "rnn": lambda: (nn.RNN(4, 6, 2), (torch.randn(5, 2, 4),)),
    "relu": lambda: (nn.RNN(4, 6, nonlinearity="relu", bias=False), (torch.randn(5, 2, 4),)),
    "gru": lambda: (nn.GRU(4, 6, 2, bidirectional=True), (torch.randn(5, 2, 4), torch.randn(4, 2, 6))),
    "lstm": lambda: (nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True), (torch.randn(2, 5, 4),)),
    "states": lambda: (nn.LSTM(4, 6), (torch.randn(5, 2, 4), (torch.randn(1, 2, 6), torch.randn(1, 2, 6)))),
    "projected": lambda: (nn.LSTM(4, 6, proj_size=3), (torch.randn(5, 2, 4),)),
    "unbatched": lambda: (nn.GRU(4, 6), (torch.randn(5, 4),)),
    "double": lambda: (nn.GRU(4, 6).double(), (torch.randn(5, 2, 4, dtype=torch.float64),)),
}


def leaves_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for each in value for leaf in leaves_of(each)] if isinstance(value, tuple | list) else []


def step(module: Any, parameters: Any, inputs: tuple[Any, ...]) -> list[Any]:
    given = [leaf.detach().clone().requires_grad_() for leaf in leaves_of(inputs)]
    left = iter(given)
    made = module(*(next(left) if isinstance(each, torch.Tensor) else tuple(left) for each in inputs))
    outputs = leaves_of(made)
    weighted = [each * torch.linspace(-1, 1, each.numel(), dtype=each.dtype).view_as(each) for each in outputs]
    torch.stack([each.sum() for each in weighted]).sum().backward()
    return [*outputs, *(each.grad for each in (*given, *parameters))]


def breaks(events: list[Any]) -> list[str]:
    return [str(event.subject) for event in events if isinstance(event.subject, BreakRecord)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("name", MODULES)
def test_one_graph_with_its_gradients(name: str, backend: str) -> None:
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    ours = copy.deepcopy(module)
    compiled = smelt.compile(ours, backend=backend)
    with collect() as events:
        found = step(compiled, ours.parameters(), inputs)
    torch.testing.assert_close(found, step(module, module.parameters(), inputs))
    assert not breaks(events)
    assert runs == ([] if backend == "eager" else ["forward", "backward"])


def test_a_backward_in_evaluation_raises_as_pytorchs_does() -> None:
    module, inputs = MODULES["gru"]()
    compiled = smelt.compile(module.eval())
    with pytest.raises(RuntimeError, match=NOT_IN_TRAINING):
        step(compiled, [], inputs)


def test_without_gradients() -> None:
    module, inputs = MODULES["lstm"]()
    with torch.no_grad(), collect() as events:
        torch.testing.assert_close(smelt.compile(module)(*inputs), module(*inputs))
    assert not breaks(events) and runs == ["forward"]


def test_two_backwards() -> None:
    """cuDNN's backward writes to the workspace: the first of two is given a copy."""
    module, inputs = MODULES["lstm"]()
    output = smelt.compile(module)(*inputs)[0].sum()
    output.backward(retain_graph=True)
    first = [each.grad.clone() for each in module.parameters() if each.grad is not None]
    output.backward()
    torch.testing.assert_close([each.grad for each in module.parameters()], [each * 2 for each in first])
    assert runs == ["forward", "backward", "backward"]


def test_the_same_layer_called_twice_is_called_twice() -> None:
    module, (x,) = MODULES["gru"]()[0], MODULES["gru"]()[1][:1]
    ours = copy.deepcopy(module)

    def twice(layer: nn.Module) -> Callable[[torch.Tensor], Any]:
        return lambda x: (layer(x)[0], layer(x)[0] * 2)

    found = step(smelt.compile(twice(ours)), ours.parameters(), (x,))
    torch.testing.assert_close(found, step(twice(module), module.parameters(), (x,)))
    assert runs == ["forward", "forward", "backward", "backward"]


def test_hooks_of_saved_tensors_are_given_the_workspace_whole() -> None:
    module, inputs = MODULES["lstm"]()
    ours = copy.deepcopy(module)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each):
        found = step(smelt.compile(ours), ours.parameters(), inputs)
    torch.testing.assert_close(found, step(module, module.parameters(), inputs))
    assert runs == ["forward", "backward"]


def test_batches_that_vary() -> None:
    module, _ = MODULES["gru"]()
    compiled = smelt.compile(module, dynamic=True)
    for steps, batch in ((5, 3), (5, 4), (7, 5)):
        x = torch.randn(steps, batch, 4)
        found = step(compiled, [], (x,))
        torch.testing.assert_close(found, step(module, [], (x,)))
    assert runs == ["forward", "backward"] * 3


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_what_is_drawn_is_not_drawn_again_under_a_checkpoint(dropout: float) -> None:
    """The state of cuDNN's dropout is not among the random states that a checkpoint puts back."""
    layer = nn.GRU(4, 6, 2, dropout=dropout)

    def checkpointed(x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda each: layer(each)[0].sin(), x, use_reentrant=False)

    step(smelt.compile(checkpointed), layer.parameters(), (torch.randn(5, 2, 4),))
    assert runs == (["forward", "backward"] if dropout else ["forward", "forward", "backward"])


def test_cudnn_turned_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.capture.interpreter.interpreter.on_host", lambda device: False)
    module, inputs = MODULES["gru"]()
    compiled = smelt.compile(module)
    compiled(*inputs)
    with torch.backends.cudnn.flags(enabled=False), collect() as events:
        torch.testing.assert_close(compiled(*inputs), module(*inputs))
    assert any(event.channel == "recompiles" for event in events)


def test_packed_sequences_say_why_they_break() -> None:
    with torch.device("cpu"), collect() as events:  # where lengths have to be
        module = nn.LSTM(4, 6)
        packed = nn.utils.rnn.pack_sequence([torch.randn(5, 4), torch.randn(3, 4)])
        found = smelt.compile(module)(packed)[0]
    torch.testing.assert_close(found.data, module(packed)[0].data)
    assert any("needs the data of a tensor" in each for each in breaks(events))


def flat_weights(spare: int = 3) -> tuple[Layers, list[torch.Tensor], torch.Tensor]:
    """Weights of a layer one behind the other, and the memory they are in."""
    module = nn.GRU(4, 6)
    sizes = [each.numel() for each in module.parameters()]
    memory = torch.randn(sum(sizes) + spare)
    parts = memory[: sum(sizes)].split(sizes)
    weights = [part.view_as(each) for part, each in zip(parts, module.parameters(), strict=True)]
    return Layers(cudnn_recurrent.GRU, True, 1, 0.0, True, False, False, False), weights, memory


def test_memory_of_weights_is_found_where_they_are_as_cudnn_wants_them() -> None:
    known = cudnn_recurrent._FlatWeights()
    layers, weights, memory = flat_weights()
    hx = [torch.zeros(1, 2, 6)]
    assert known.find(layers, hx, weights) is None
    known.learn(layers, hx, weights, memory[:-3])
    for _, others, theirs in (flat_weights(), flat_weights()):
        found = known.find(layers, hx, others)
        assert found is not None and torch.equal(found, theirs[:-3]) and found.data_ptr() == theirs.data_ptr()
    assert known.find(layers, hx, list(nn.GRU(4, 6).parameters())) is None  # each in memory of its own
    assert known.find(layers, hx, [weights[0], weights[1], weights[3], weights[2]]) is None
    assert known.find(layers, hx, [weights[0].t().contiguous().t(), *weights[1:]]) is None
    assert known.find(layers._replace(mode=cudnn_recurrent.LSTM), hx, weights) is None
    assert known.find(layers, [torch.zeros(1, 2, 7)], weights) is None
    behind = [
        each.view_as(weight)
        for each, weight in zip(memory[3:].split([w.numel() for w in weights]), weights, strict=True)
    ]
    assert known.find(layers, hx, behind) is None  # they do not begin it


def test_weights_that_are_not_at_the_head_of_their_memory_are_not_remembered() -> None:
    known = cudnn_recurrent._FlatWeights()
    layers, weights, memory = flat_weights()
    known.learn(layers, [torch.zeros(1, 2, 6)], weights, memory.clone())
    assert known.find(layers, [torch.zeros(1, 2, 6)], weights) is None
