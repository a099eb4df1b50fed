"""What generated programs found wrong once about tensors: gradients, views, names of one tensor."""

from typing import Any

import pytest
import torch

import smelt
from tests.capture.programs import Captured

X = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_gradients_of_one_tensor_known_by_two_names(backend: str) -> None:
    """Half of an expression is computed behind a break: `a` came back from it on the stack and as a variable, and the
    gradient at `b` was given out as that at `a`."""

    def program(x: torch.Tensor, found: list[Any]) -> None:
        a = x.tanh()
        b = a * torch.from_numpy(x.detach().numpy() * 2) + a
        found.extend(torch.autograd.grad(b.sum(), [a, b], retain_graph=True))

    x = X.clone().requires_grad_()
    mine: list[Any] = []
    theirs: list[Any] = []
    program(x, theirs)
    smelt.compile(program, backend=backend)(x, mine)
    assert mine[0] is not mine[1]
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_a_written_tensor_known_by_two_names_has_one_size(backend: str) -> None:
    """`given` and `alias` became one input of the graph, which tells the size by the name of the first alone."""

    def program(given: torch.Tensor, alias: torch.Tensor) -> Any:
        given.add_(1)
        return torch.full((alias.shape[0],), 2.0), given * 2

    compiled = smelt.compile(program, backend=backend)
    for rows in (4, 3, 5):
        mine, theirs = torch.ones(rows, 2), torch.ones(rows, 2)
        torch.testing.assert_close(compiled(mine, mine), program(theirs, theirs))


def _layouts(tensors: list[Any]) -> list[Any]:
    places = [each.untyped_storage().data_ptr() for each in tensors]
    return [
        (each.stride(), each.storage_offset(), places.index(place)) for each, place in zip(tensors, places, strict=True)
    ]


BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])


@BACKENDS
def test_equal_views_of_what_the_program_made_lie_where_eagers_do(backend: str) -> None:
    """Two of them were copies that left out what the view does not show."""

    def program(y: torch.Tensor) -> list[Any]:
        return [torch.stack([y, -y])[1] for _ in range(3)]

    mine, theirs = smelt.compile(program, backend=backend)(X), program(X)
    assert _layouts(mine) == _layouts(theirs)
    torch.testing.assert_close(mine, theirs)


@BACKENDS
def test_a_gradient_that_is_seen_on_its_way_lies_as_eagers_does(backend: str) -> None:
    """The gradient of a sum is one number shown many times; it had been added to zeros."""

    def program(x: torch.Tensor, found: list[Any]) -> None:
        a = x.tanh()
        b = a * (print(), x)[1] + a
        found.extend(torch.autograd.grad(b.sum(), [a, b], retain_graph=True))

    x = X.clone().requires_grad_()
    mine: list[Any] = []
    theirs: list[Any] = []
    program(x, theirs)
    smelt.compile(program, backend=backend)(x, mine)
    assert _layouts(mine) == _layouts(theirs)
    torch.testing.assert_close(mine, theirs)


def stacked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.stack([y, x + 1]) * 2).sum()


def stacked_and_differentiated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = stacked(x, y)
    loss.backward(retain_graph=True)
    return loss


@BACKENDS
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_that_are_parts_of_one_lie_where_eagers_do(inside: bool, backend: str) -> None:
    """A stack's gradient is taken apart, and leaves keep the parts as they are; each had been copied."""
    found = []
    for compiled in (False, True):
        function = stacked_and_differentiated if inside else stacked
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        loss = (smelt.compile(function, backend=backend) if compiled else function)(x, y)
        if not inside:
            loss.backward()
        found.append([x.grad, y.grad])
    assert _layouts(found[1]) == _layouts(found[0])
    torch.testing.assert_close(found[1], found[0])


def test_new_tells_a_size_from_data() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return x.new(x.shape).fill_(2.0) + x.new((1, 2))  # a size of (4, 2), and two numbers

    for rows in (4, 5):
        x = torch.ones(rows, 2)
        for backend in ("eager", "llvm"):
            torch.testing.assert_close(smelt.compile(like, backend=backend)(x), like(x))


def through_both(x: torch.Tensor, v: torch.Tensor) -> Any:
    return torch.autograd.grad((v * x).sum(), [x], retain_graph=True)


def through_one(x: torch.Tensor, v: torch.Tensor) -> Any:
    return torch.autograd.grad((v * 3).sum(), [x], allow_unused=True, retain_graph=True)


def into_one(x: torch.Tensor, v: torch.Tensor) -> Any:
    (v * x).sum().backward(inputs=[x], retain_graph=True)
    return x.grad


@BACKENDS
@pytest.mark.parametrize("function", [through_both, through_one, into_one])
def test_gradients_flow_on_outside_of_the_graph(function: Any, backend: str) -> None:
    """What `v` is computed from, only PyTorch knows: the part that flows to `x` by way of it was missing."""
    compiled = smelt.compile(function, backend=backend)
    for computed in (False, True, False):
        found = []
        for run in (function, compiled):
            x = torch.nn.Parameter(X.clone())
            v = x * 2 if computed else X.clone().requires_grad_()
            found.append(run(x, v))
        torch.testing.assert_close(found[1], found[0])


def test_gradients_of_the_one_tensor_from_outside_are_captured() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.autograd.grad((x * x).sum(), x, create_graph=True)

    runner = Captured(fullgraph=True)
    for x in (X.clone().requires_grad_(), X.clone().requires_grad_() * 2):
        torch.testing.assert_close(runner(program, x), program(x))
    assert len(runner.graphs) == 1


def test_a_tensor_that_comes_to_require_grad_does_so_by_both_its_names() -> None:
    weight = torch.ones(3, requires_grad=True)

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x += x * weight
        before = y + 1
        x.mul_(weight)
        return before.requires_grad, (y + 1).requires_grad, y.requires_grad

    compiled = smelt.compile(program, backend="eager")
    for _ in range(2):
        x = X.clone()
        assert compiled(x, x) == (True, True, True)


def test_a_tensor_that_is_turned_is_so_by_both_its_names() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        before = y.shape
        x.t_()
        return before, y.shape, y + 1

    compiled = smelt.compile(program, backend="eager")
    for _ in range(2):
        x, plain = X.clone(), X.clone()
        torch.testing.assert_close(compiled(x, x), program(plain, plain))


def comes_to_require_grad(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x += weight
    doubled = (y + y).view(-1)
    log.append(doubled.requires_grad)
    return doubled


def is_turned(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.t_()
    log.append(tuple(y.shape))
    return y.sum(0)


@BACKENDS
@pytest.mark.parametrize("function", [comes_to_require_grad, is_turned])
def test_what_became_of_one_input_is_asked_of_others_in_its_memory(function: Any, backend: str) -> None:
    weight = torch.nn.Parameter(torch.tensor(2.0))

    def seen(call: Any) -> list[Any]:
        log: list[Any] = []
        for how in ("apart", "x", "view", "row", "apart", "x"):
            x = torch.ones(2, 3)
            y = {"apart": torch.ones(2, 3), "x": x, "view": x.view(2, 3), "row": x[:1]}[how]
            result = call(x, y, weight, log)
            log.append((how, result.requires_grad, result.tolist()))
        return log

    assert seen(smelt.compile(function, backend=backend)) == seen(function)
