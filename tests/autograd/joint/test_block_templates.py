"""A repeated block is traced once, and written again only for blocks that equal it in all that a trace depends on.

Each program has layers that are equal or differ in one thing. Its joint graph, with phases, places in the program and
the order of gradients, is the one that running each call gives.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.autograd.joint import block_templates
from smelt.autograd.joint.trace_joint import Joint, trace_joint
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced, format_graph
from smelt.pipeline import passes

LAYERS, OTHER = 6, 4  # how many, and which differs


class Layer(nn.Module):
    """Eight calls or more, of which what is asked for differs."""

    def __init__(self, *, eps: float = 1e-5, bias: bool = True, width: int = 16, act: Any = F.gelu) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=eps)
        self.up, self.down = nn.Linear(8, width, bias=bias), nn.Linear(width, 8)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.up(self.norm(x)))
        h = self.down(h.view(-1, h.shape[-1]).view(h.shape)) * 0.5
        turned: torch.Tensor = x + h.transpose(0, 1).contiguous().transpose(0, 1)
        return turned


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module], around: Any = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.around = around

    def forward(self, x: torch.Tensor) -> Any:
        return self.around(self, x) if self.around is not None else through(self, x)


def through(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    for layer in stack.layers:
        x = layer(x)
    return x.sin()


def layers(**different: Any) -> list[nn.Module]:
    """Equal layers, but for one."""
    return [Layer(**(different if place == OTHER else {})) for place in range(LAYERS)]


def frozen() -> Stack:
    stack = Stack(layers())
    stack.layers[OTHER].up.weight.requires_grad_(False)  # type: ignore[union-attr]
    return stack


def double() -> Stack:
    def around(stack: Stack, x: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(stack.layers):
            x = layer(x.double()).float() if place == OTHER else layer(x)
        return x

    stack = Stack(layers(), around)
    stack.layers[OTHER].double()
    return stack


def tied() -> Stack:
    """A parameter that two layers share: its gradient is a sum over both."""
    stack = Stack(layers())
    stack.layers[1].up.weight = stack.layers[3].up.weight  # type: ignore[union-attr]
    return stack


def hidden(stack: Stack, x: torch.Tensor) -> Any:
    """What layers hand on is returned, too."""
    states = []
    for layer in stack.layers:
        x = layer(x)
        states.append(x)
    return tuple(states)


def skips(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    """Later layers read what the first has computed."""
    first = stack.layers[0](x)
    for layer in stack.layers:
        x = layer(x) + first
    return x


def written(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    """A layer's input is written after the layer has read it."""
    x = x * 1.0
    for place, layer in enumerate(stack.layers):
        before, x = x, layer(x)
        if place == 3:
            before.mul_(2.0)
    return x


def mode(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    for place, layer in enumerate(stack.layers):
        with torch.set_grad_enabled(place != OTHER):
            x = layer(x)
    return x


def cast(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    for place, layer in enumerate(stack.layers):
        with torch.autocast("cpu", torch.bfloat16, enabled=place != OTHER):
            x = layer(x).float()
    return x


def all_cast(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return through(stack, x)


def hooked(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    for place, layer in enumerate(stack.layers):
        x = layer(x)
        if place == OTHER:
            x.register_hook(lambda gradient: gradient * 2)
    return x


def kept(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    for place, layer in enumerate(stack.layers):
        x = checkpoint(layer, x, use_reentrant=False) if place == OTHER else layer(x)
    return x


def transposed(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    """The gradient that the last layer is given is laid out in another way than what it returns."""
    for layer in stack.layers:
        x = layer(x)
    return x.transpose(1, 2).contiguous().sin()


def broadcast(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    for layer in stack.layers:
        x = layer(x)
    return x.sum()


class Shifted(Layer):
    """Its backward does not read its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + 1.0)


class Dropping(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(x), 0.1, self.training)


class InPlace(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu_()


class Counting(Layer):
    """Writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("seen").add_(x.detach().mean((0, 1)))
        return super().forward(x)


class Viewed(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).view(2, 4, 8)


class Attending(Layer):
    """Attention by a mask that the program computes from nothing."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        head = self.norm(x).view(2, 4, 2, 4).transpose(1, 2)
        seen = F.scaled_dot_product_attention(head, head, head, attn_mask=mask)
        return super().forward(x + seen.transpose(1, 2).reshape(2, 4, 8))


def masked(stack: Stack, x: torch.Tensor, *, alike: bool) -> torch.Tensor:
    rows = torch.arange(4, device=x.device)
    causal = rows[None] <= rows[:, None]
    for place, layer in enumerate(stack.layers):
        x = layer(x, causal if alike or place != OTHER else rows[None] >= rows[:, None])
    return x


def attending(*, alike: bool) -> Stack:
    return Stack([Attending() for _ in range(LAYERS)], lambda stack, x: masked(stack, x, alike=alike))


def stacked(kind: type[Layer]) -> Stack:
    return Stack([kind() for _ in range(LAYERS)])


AFTER = LAYERS - 1  # the first layer is given what requires no gradient
BETWEEN = OTHER - 1

PROGRAMS: dict[str, tuple[Callable[[], Stack], int]] = {  # with how many blocks are written by a template
    "equal": (lambda: Stack(layers()), AFTER),
    "eps": (lambda: Stack(layers(eps=1e-3)), BETWEEN),
    "no bias": (lambda: Stack(layers(bias=False)), BETWEEN),
    "width": (lambda: Stack(layers(width=32)), BETWEEN),
    "activation": (lambda: Stack(layers(act=F.relu)), BETWEEN),
    "argument": (lambda: Stack(layers(act=lambda x: F.gelu(x, approximate="tanh"))), BETWEEN),
    "frozen": (frozen, BETWEEN),
    "double": (double, BETWEEN),
    # Capture makes two inputs of a tensor that is reached by two names, so that blocks with it are equal.
    "tied": (tied, AFTER),
    "hidden states": (lambda: Stack(layers(), hidden), 0),
    "skip connections": (lambda: Stack(layers(), skips), 0),
    "written input": (lambda: Stack([Shifted() for _ in range(LAYERS)], written), 0),
    "grad mode": (lambda: Stack(layers(), mode), BETWEEN),
    "autocast in one": (lambda: Stack(layers(), cast), 0),
    "autocast": (lambda: Stack(layers(), all_cast), AFTER),
    "checkpoint in one": (lambda: Stack(layers(), kept), BETWEEN),
    # These are traced again, call by call.
    "transposed gradient": (lambda: Stack(layers(), transposed), AFTER),
    "broadcast gradient": (lambda: Stack(layers(), broadcast), AFTER),
    # Here each layer does what no template holds.
    "dropout": (lambda: stacked(Dropping), 0),
    "in place": (lambda: stacked(InPlace), 0),
    "buffers": (lambda: stacked(Counting), 0),
    "views": (lambda: stacked(Viewed), AFTER),
    "masks": (lambda: attending(alike=True), AFTER),
    "mask in one": (lambda: attending(alike=False), BETWEEN),
}


@dataclass(frozen=True)
class Written:
    """A joint graph as it was traced, before passes write it anew."""

    text: str
    plan: JointPlan
    metas: list[dict[str, Any]]


def as_written(joint: Joint) -> Written:
    graph = joint.traced.graph
    return Written(format_graph(graph), joint.plan, [dict(node.meta) for node in graph.nodes])


class Traces:
    """Each joint graph, and the one that is traced without templates; how many blocks were written by a template."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Written, Written]] = []
        self.blocks = 0

    def trace(self, traced: Traced, decompositions: Any = None) -> Joint:
        before = self.blocks
        joint = trace_joint(traced, decompositions)
        blocks = self.blocks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(block_templates, "repeated_blocks", lambda graph: [])
            self.pairs.append((as_written(joint), as_written(trace_joint(traced, decompositions))))
        assert self.blocks == blocks >= before
        return joint


@contextlib.contextmanager
def traces() -> Iterator[Traces]:
    seen = Traces()
    output = block_templates._Run.output

    def counted(run: Any) -> Any:
        seen.blocks += 1
        return output(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "trace_joint", seen.trace)
        patch.setattr(block_templates._Run, "output", counted)
        yield seen


def results(called: Callable[..., Any], stack: Stack, x: torch.Tensor) -> list[torch.Tensor]:
    returned = called(x)
    values = list(returned) if isinstance(returned, tuple) else [returned]
    torch.stack([value.sum() for value in values]).sum().backward()
    gradients = [parameter.grad for parameter in stack.parameters() if parameter.grad is not None]
    stack.zero_grad()
    return [*values, *gradients]


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_blocks_are_written_as_running_each_call_writes_them(name: str) -> None:
    make, blocks = PROGRAMS[name]
    torch.manual_seed(0)
    stack, x = make(), torch.randn(2, 4, 8)
    with traces() as seen:
        torch.manual_seed(1)
        compiled = results(smelt.compile(stack, options={"fallback": False}), stack, x)
    torch.manual_seed(1)
    for mine, theirs in zip(compiled, results(stack, stack, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert seen.pairs
    assert seen.blocks == blocks
    for joint, plain in seen.pairs:
        assert joint.text == plain.text
        assert joint == plain


def test_order_of_gradients_is_that_of_eager() -> None:
    stack, x, called = Stack(layers()), torch.randn(2, 4, 8), list[str]()
    for name, parameter in stack.named_parameters():
        parameter.register_hook(lambda gradient, name=name: called.append(name))
    results(stack, stack, x)
    expected = called.copy()
    called.clear()
    with traces() as seen:
        results(smelt.compile(stack, options={"fallback": False}), stack, x)
    assert seen.blocks == AFTER
    assert called == expected


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_inside_the_compiled_function(create_graph: bool) -> None:
    torch.manual_seed(0)
    stack = Stack(layers())

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = stack(x).square().sum()
        parameters = list(stack.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, create_graph=create_graph)
        return loss + torch.stack([each.square().sum() for each in gradients]).sum()

    x = torch.randn(2, 4, 8)
    torch.testing.assert_close(results(smelt.compile(step), stack, x), results(step, stack, x), rtol=1e-4, atol=1e-5)


def test_blocks_without_gradients() -> None:
    stack, x = Stack(layers()).requires_grad_(False), torch.randn(2, 4, 8)
    compiled = smelt.compile(stack, options={"fallback": False})
    with traces() as seen, torch.no_grad():
        torch.testing.assert_close(compiled(x), stack(x))
    assert seen.blocks == LAYERS
