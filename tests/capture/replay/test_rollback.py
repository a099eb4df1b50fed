"""Graphs that fail half way: nothing of them has happened, and Python runs from their start and raises."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.replay import rollback
from tests.capture.programs import compare, error_shape

BACKENDS = ("eager", "aot_eager", "llvm")
X = torch.arange(3.0)
IN, OUT = torch.tensor([1]), torch.tensor([9])


class Counted:
    def __init__(self) -> None:
        self.calls = 0
        self.steps = torch.zeros(3)


def uncaught(x: torch.Tensor, i: torch.Tensor, counted: Any) -> Any:
    counted.calls += 1
    counted.steps += 1
    return x[i] * counted.steps


def caught(x: torch.Tensor, i: torch.Tensor, counted: Any) -> Any:
    counted.calls += 1
    counted.steps += 1
    try:
        return x[i] * counted.steps
    except IndexError:
        return x - counted.steps


def after_a_break(x: torch.Tensor, i: torch.Tensor, counted: Any) -> Any:
    print("broken")
    counted.calls += 1
    counted.steps += 1
    return x[i] * counted.steps


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [uncaught, caught, after_a_break], ids=lambda f: f.__name__)
def test_what_was_written_before_an_error_is_written_once(function: Callable[..., Any], backend: str) -> None:
    def seen(call: Callable[..., Any]) -> list[Any]:
        counted, atoms = Counted(), []
        for index in (IN, OUT, OUT, IN):
            try:
                atoms.append(call(X, index, counted).tolist())
            except IndexError as error:
                atoms.append(error_shape(error))
            atoms += [counted.calls, counted.steps.tolist()]
        return atoms

    assert seen(smelt.compile(function, backend=backend)) == seen(function)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [IN, OUT], ids=["fails later", "fails at once"])
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
@pytest.mark.parametrize("has_history", [False, True], ids=["plain", "with history"])
def test_histories_of_what_was_written_before_an_error(
    backend: str, first: torch.Tensor, view: bool, has_history: bool
) -> None:
    def written(x: torch.Tensor, i: torch.Tensor, into: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        into += w * 2
        try:
            return x[i] * into.sum()
        except IndexError:
            return into * w

    def seen(call: Callable[..., Any]) -> list[Any]:
        w = torch.ones(3, requires_grad=True)
        leaf = torch.arange(6.0).reshape(2, 3).requires_grad_(has_history)
        whole = leaf * 3
        into = whole[0] if view else whole[0].clone()
        atoms: list[Any] = []
        for index in (first, OUT):
            result = call(X, index, into, w)
            (result.sum() + whole.sum()).backward(retain_graph=True)
            flags = [into.requires_grad, into.is_leaf, whole.requires_grad]
            grads = [each.grad.tolist() for each in (w, leaf) if each.grad is not None]
            atoms.append((result.tolist(), into.tolist(), whole.tolist(), flags, grads))
        return atoms

    assert seen(smelt.compile(written, backend=backend)) == seen(written)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_written_without_gradients_keeps_its_history(backend: str) -> None:
    def written(x: torch.Tensor, i: torch.Tensor, into: torch.Tensor) -> Any:
        with torch.no_grad():
            into += 1
        try:
            return x[i] * into
        except IndexError:
            return into * 2

    def seen(call: Callable[..., Any]) -> Any:
        leaf = torch.ones(3, requires_grad=True)
        into = leaf * 3
        call(X, OUT, into).sum().backward()
        assert leaf.grad is not None
        return into.requires_grad, into.tolist(), leaf.grad.tolist()

    assert seen(smelt.compile(written, backend=backend)) == seen(written)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_inference_mode(backend: str) -> None:
    def run(call: Callable[..., Any]) -> Any:
        with torch.inference_mode():
            counted = Counted()
            return [(call(X, index, counted).tolist(), counted.steps.tolist()) for index in (IN, OUT)]

    assert run(smelt.compile(caught, backend=backend)) == run(caught)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_drawn_once(backend: str) -> None:
    def drawn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(3)
        try:
            return x[i] + noise
        except IndexError:
            return noise

    def run(call: Callable[..., Any]) -> Any:
        torch.manual_seed(3)
        return [call(X, index).tolist() for index in (IN, OUT, OUT, IN)]

    assert run(smelt.compile(drawn, backend=backend)) == run(drawn)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checks_run_though_nobody_wants_their_results(backend: str) -> None:
    def checked(x: torch.Tensor) -> int:
        torch.linalg.cholesky(x)
        return 1

    compiled = smelt.compile(checked, backend=backend)
    assert compiled(torch.eye(3)) == 1
    with pytest.raises(RuntimeError, match="positive-definite"):
        compiled(-torch.eye(3))


class Summed:
    @functools.cached_property
    def total(self) -> Any:
        return self.missing.sum()  # type: ignore[attr-defined]


def test_a_cached_property_that_raises_has_its_line_of_functools() -> None:
    def uncaught(x: torch.Tensor) -> Any:
        return x * 2 + Summed().total

    def caught(x: torch.Tensor) -> Any:
        try:
            return x * 2 + Summed().total
        except AttributeError:
            return x * 3

    compare(uncaught, X)
    assert compare(caught, X).break_codes[0] == "B007"


def norm_of_module(norm: torch.nn.BatchNorm1d, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    normed: torch.Tensor = norm(x)
    return normed + x[i]


def norm_of_function(norm: torch.nn.BatchNorm1d, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.batch_norm(x, norm.running_mean, norm.running_var, training=True) + x[i]


def norm_of_views(norm: torch.nn.BatchNorm1d, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None and var is not None
    return torch.nn.functional.batch_norm(x, mean[:], var.view(-1), training=True) + x[i]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [norm_of_module, norm_of_function, norm_of_views], ids=lambda f: f.__name__)
def test_running_statistics_move_once(function: Callable[..., Any], backend: str) -> None:
    """PyTorch writes them without saying so: neither the schema nor the version tells."""
    x = torch.arange(12.0).view(3, 4)

    def seen(call: Callable[..., Any]) -> list[Any]:
        norm = torch.nn.BatchNorm1d(4).double()
        atoms: list[Any] = []
        for index in ([0, 1, 2], [0, 1, 7], [2, 1, 0]):
            try:
                atoms.append(call(norm, x.double(), torch.tensor(index)).tolist())
            except IndexError as error:
                atoms.append(str(error))
            state = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
            atoms += [each.tolist() for each in state if each is not None]
        return atoms

    for found, wanted in zip(seen(smelt.compile(function, backend=backend)), seen(function), strict=True):
        if isinstance(found, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)


def written_before(w: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    w.mul_(2)
    return x[i] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_is_counted_once(backend: str) -> None:
    call, w, v = smelt.compile(written_before, backend=backend), torch.ones(3), torch.ones(3)
    for index in (IN, OUT, IN):
        for function, tensor in ((call, w), (written_before, v)):
            try:
                function(tensor, X, index)
            except IndexError:
                assert index is OUT
        assert (w.tolist(), w._version) == (v.tolist(), v._version)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_compiled_graphs_write_last_and_copy_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of keys and values are written before many an operator that may raise."""
    monkeypatch.setattr(rollback, "_copy", lambda tensor, rebased: pytest.fail("copied"))
    call, w = smelt.compile(written_before, backend=backend), torch.ones(3)
    call(w, X, IN)
    assert w.tolist() == [2, 2, 2]
