"""Looking at gradients of results: hooks, retain_grad(), torch.autograd.grad, where one is computed from another.

In eager each result has a node of its own, in a compiled graph all share one. Each scene is played both ways and must
tell the same story.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.errors import SmeltError

Told = list[Any]
Scene = tuple[Callable[..., Any], Callable[..., Told]]
SCENES: dict[str, Scene] = {}


def scene(program: Callable[..., Any]) -> Callable[[Callable[..., Told]], Callable[..., Told]]:
    def add(play: Callable[..., Told]) -> Callable[..., Told]:
        SCENES[play.__name__] = program, play
        return play

    return add


def apart(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.sin(), w * 2


def chain(x: torch.Tensor, w: torch.Tensor) -> Any:
    first = (x * w).sin()
    second = first.cos() + x
    return first, second, (second * first).sum()


def views(x: torch.Tensor, w: torch.Tensor) -> Any:
    keys = (x @ w).view(2, 2, 3).transpose(0, 1)
    flat = x.view(-1)
    return keys, flat, (keys * 2).sum() + flat.exp().sum()


def branches(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.tanh()
    return h, h * 2, h.exp() @ w, w.sin()


@scene(apart)
def a_hook_without_a_gradient(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    a, b = f(x, w)
    a.register_hook(lambda grad: told.append(("a", grad * 1)))
    b.register_hook(lambda grad: told.append(("b", grad * 1)))
    b.sum().backward(retain_graph=True)
    a.sum().backward()
    return [*told, x.grad, w.grad]


@scene(apart)
def hooks_taken_away(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    a, b = f(x, w)
    handle = a.register_hook(lambda grad: told.append("gone"))
    a.register_hook(lambda grad: grad * 3)
    handle.remove()
    (a.sum() + b.sum()).backward()
    return [*told, x.grad, w.grad]


@scene(apart)
def one_hook_for_several(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    a, b = f(x, w)
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: told.append([g is None for g in grads]))
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda grad: told.append(grad * 1), mode="any")
    b.sum().backward(retain_graph=True)
    (a.sum() + b.sum()).backward()
    return [*told, x.grad, w.grad]


@scene(chain)
def hooks_on_the_way(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    first, second, loss = f(x, w)
    first.register_hook(lambda grad: told.append(("first", grad * 1)))
    second.register_hook(lambda grad: told.append(("second", grad * 1)))
    loss.register_hook(lambda grad: told.append(("loss", grad * 1)))
    loss.backward()
    return [*told, x.grad, w.grad]


@scene(chain)
def hooks_that_change(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    first, second, loss = f(x, w)
    first.register_hook(lambda grad: grad * 3)
    second.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    del first, second
    loss.backward()
    return [x.grad, w.grad]


@scene(chain)
def retained(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    first, second, loss = f(x, w)
    first.retain_grad()
    loss.backward(retain_graph=True)
    before = first.grad * 1
    second.retain_grad()
    (second.sum() + loss).backward()
    return [before, first.grad, second.grad, x.grad, w.grad]


@scene(chain)
def asked_for(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    first, second, loss = f(x, w)
    told: Told = [*torch.autograd.grad(loss, [first, second], retain_graph=True)]
    told += torch.autograd.grad(loss, [second, x, w], retain_graph=True)
    told += torch.autograd.grad(second.sum(), first, retain_graph=True)
    told += torch.autograd.grad(second.sum(), [first, w], retain_graph=True)
    told += torch.autograd.grad(first.sum(), second, retain_graph=True, allow_unused=True)
    told += torch.autograd.grad((loss * second).sum(), first, retain_graph=True)
    loss.backward(inputs=[first, x], retain_graph=True)
    loss.backward(inputs=[w])
    return [*told, first.grad, x.grad, w.grad]


@scene(chain)
def with_work_outside(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    first, second, loss = f(x, w)
    first.register_hook(lambda grad: told.append(grad * 1))
    (first.exp().sum() * loss + second.sin().sum()).backward()
    return [*told, x.grad, w.grad]


@scene(chain)
def twice_through(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    middle = x * 2
    first, second, loss = f(middle, w)
    again = f(second, w)
    for tensor in (first, second, *again[:2]):
        tensor.register_hook(lambda grad: told.append(grad * 1))
    (loss + again[2]).backward()
    return [*told, x.grad, w.grad]


@scene(chain)
def a_second_time(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    first, _second, loss = f(x, w)
    first.register_hook(lambda grad: told.append(grad * 1))
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return [*told, x.grad, w.grad]


@scene(chain)
def written_afterwards(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    _first, second, _loss = f(x, w)
    second.register_hook(lambda grad: told.append(("before", grad * 1)))
    second.mul_(3)
    second.register_hook(lambda grad: told.append(("after", grad * 1)))
    second.sum().backward()
    return [*told, x.grad, w.grad]


@scene(chain)
def kept_elsewhere(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        first, _second, loss = f(x, w)
    first.register_hook(lambda grad: told.append(grad * 1))
    loss.backward()
    return [*told, x.grad, w.grad]


@scene(views)
def views_on_the_way(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    keys, flat, loss = f(x, w)
    keys.register_hook(lambda grad: told.append(("keys", grad * 1)))
    flat.register_hook(lambda grad: grad * 2)
    keys.retain_grad()
    loss.backward(retain_graph=True)
    told += torch.autograd.grad(loss, [keys, flat], retain_graph=True)
    (loss + keys.sum() + flat.sum()).backward()
    return [*told, keys.grad, x.grad, w.grad]


@scene(branches)
def one_for_several(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    h, twice, out, alone = f(x, w)
    for name, tensor in (("h", h), ("twice", twice), ("out", out), ("alone", alone)):
        tensor.register_hook(lambda grad, name=name: told.append((name, grad * 1)))
    twice.sum().backward(retain_graph=True)
    out.sum().backward(retain_graph=True)
    (alone.sum() + out.sum()).backward()
    return [*sorted(told, key=lambda pair: str(pair[0])), x.grad, w.grad]


def views_of_views(x: torch.Tensor, w: torch.Tensor) -> Any:
    whole = x * w
    flat = whole.view(-1)
    part = flat[:6]
    rows = x.view(12)
    return part.sin(), part, flat, whole, rows[2:], rows


@scene(views_of_views)
def hooks_along_a_chain_of_views(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    result, *shown = f(x, w)
    for number, tensor in enumerate(shown):
        tensor.register_hook(lambda grad, number=number: told.append((number, grad * 1)))
    result.sum().backward(retain_graph=True)
    (result.sum() + shown[3].exp().sum()).backward()
    return [*told, x.grad, w.grad]


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.mul_(w)
    row = x[1]
    return x.sin(), row, x


@scene(written)
def hooks_on_what_was_written(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    told: Told = []
    middle = x * 2
    result, row, same = f(middle, w)
    assert same is middle
    middle.register_hook(lambda grad: told.append(grad * 1))
    row.retain_grad()
    (result.sum() + row.sum()).backward(retain_graph=True)
    return [*told, *torch.autograd.grad(result.sum(), [middle, w]), row.grad, x.grad, w.grad]


def inside(x: torch.Tensor, w: torch.Tensor) -> Any:
    seen: list[Any] = []
    h = (x * w).sin()
    y = h.cos()
    h.retain_grad()
    h.register_hook(lambda grad: seen.append(grad * 1))
    return h, (y * 2).sum(), seen


@scene(inside)
def hooks_set_by_the_program(f: Any, x: torch.Tensor, w: torch.Tensor) -> Told:
    h, loss, seen = f(x, w)
    loss.backward()
    return [*seen, h.grad, x.grad, w.grad]


def arguments(program: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 3, requires_grad=True)
    square = program in (views, branches)
    return x, torch.randn(*((3, 3) if square else (4, 3)), requires_grad=True)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("name", SCENES)
def test_the_same_story(name: str, backend: str) -> None:
    program, play = SCENES[name]
    wanted = play(program, *arguments(program))
    told = play(smelt.compile(program, backend=backend), *arguments(program))
    assert words(told) == words(wanted)
    torch.testing.assert_close(tensors(told), tensors(wanted))


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, tuple | list) else []


def words(value: Any) -> Any:
    """What was told besides tensors, and where there were some."""
    if isinstance(value, tuple | list):
        return [words(item) for item in value]
    return "a tensor" if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_sizes_that_change(backend: str) -> None:
    compiled = smelt.compile(chain, backend=backend)
    for rows in (4, 5, 6, 7):
        graph_reports = []
        for f in (chain, compiled):
            torch.manual_seed(rows)
            x, w = torch.randn(rows, 3, requires_grad=True), torch.randn(rows, 3, requires_grad=True)
            first, second, loss = f(x, w)
            first.retain_grad()
            second.register_hook(lambda grad: grad * 2)
            loss.backward()
            graph_reports.append([first.grad, x.grad, w.grad])
        torch.testing.assert_close(graph_reports[1], graph_reports[0])


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_feature_maps_in_another_layout(backend: str) -> None:
    """Grad-CAM: the gradient of a score at a feature map, in a network that computes channels last."""
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Linear(4, 2)

    def net(image: torch.Tensor) -> Any:
        maps = body(image)
        return maps, head(maps.mean((2, 3)))

    image = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    told = []
    for f in (net, smelt.compile(net, backend=backend)):
        maps, scores = f(image)
        maps.retain_grad()
        scores[:, 1].sum().backward(retain_graph=True)
        told.append([maps.grad, *torch.autograd.grad(scores.square().sum(), maps)])
    torch.testing.assert_close(told[1], told[0])


def test_nobody_looks() -> None:
    """Then a backward is one, whatever leans on what."""
    compiled = smelt.compile(chain, backend="aot_eager")
    x, w = arguments(chain)
    first, _, loss = compiled(x, w)
    smelt.counters.clear()
    loss.backward(retain_graph=True)
    torch.autograd.grad(loss, [x, w], retain_graph=True)
    assert smelt.counters["backwards"] == 1
    first.retain_grad()
    loss.backward()
    assert smelt.counters["backwards"] == 4  # from the loss, from the second result, and to the inputs


def test_derivatives_of_derivatives() -> None:
    compiled = smelt.compile(chain, backend="aot_eager")
    told = []
    for f in (chain, compiled):
        x, w = arguments(chain)
        _, _, loss = f(x, w)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        gradient.square().sum().backward()
        told.append([gradient, x.grad, w.grad])
    torch.testing.assert_close(told[1], told[0])
    first, _, loss = compiled(*arguments(chain))
    with pytest.raises(SmeltError, match="SM040"):
        torch.autograd.grad(loss, first, create_graph=True)


def test_a_backward_captured_as_the_engine_runs_it() -> None:
    compiled = smelt.compile(chain, backend="aot_eager")
    told = []
    for f in (chain, compiled):
        for looking in (False, True, False):
            x, w = arguments(chain)
            first, _, loss = f(x, w)
            if looking:
                first.retain_grad()
            with smelt.compiled_autograd.enable(smelt.compile(backend="aot_eager")):
                loss.backward(retain_graph=True)
                asked = torch.autograd.grad(loss, first)
            told.append([first.grad if looking else None, *asked, x.grad, w.grad])
    torch.testing.assert_close(told[3:], told[:3])
