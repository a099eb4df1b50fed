"""Backwards that repeat are recorded without PyTorch's engine: eager's gradients, whatever changes between rounds."""

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt

ROUNDS = 6


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    smelt.lazy.enable(background=False)
    smelt.reset()
    yield
    smelt.lazy.step()


def repeated() -> int:
    return smelt.counters["lazy_backwards"]


class Net(nn.Module):
    """Linear layers, a norm, views, and weights that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.tied = nn.Parameter(torch.randn(8, 8) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(F.gelu(self.norm(self.up(x))))
        rows, columns = x.shape
        return (x @ self.tied).view(rows, 2, columns // 2).transpose(0, 1).reshape(rows, columns) @ self.tied.t()


Change = Callable[[int, "Side"], None]


class Side:
    """A model, its optimizer and what its rounds yielded, on one device."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.net = Net().to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.5)
        self.kept: list[torch.Tensor] = []
        self.scale = 1.0
        self.backward: Callable[[torch.Tensor], None] = lambda loss: loss.backward()
        self.sum_up = True

    def loss(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(4, 8, generator=generator).to(self.device)
        return (self.net(x) * self.scale).square().mean()

    def round(self, number: int) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(number)
        self.backward(loss)
        self.kept.append(loss.detach())
        self.kept += [parameter.grad.clone() for parameter in self.net.parameters() if parameter.grad is not None]
        self.optimizer.step()
        self.kept += [parameter.detach().clone() for parameter in self.net.parameters()]


def compare(change: Change | None = None, rounds: int = ROUNDS) -> None:
    sides = Side("cpu"), Side("lazy")
    for number in range(rounds):
        for side in sides:
            if change is not None:
                change(number, side)
            side.round(number)
    eager, lazy = sides
    assert len(eager.kept) == len(lazy.kept)
    for wanted, found in zip(eager.kept, lazy.kept, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_a_loop_records_its_backward_without_the_engine() -> None:
    compare()
    assert repeated() >= ROUNDS - 3


def test_gradients_of_rounds_are_different_tensors() -> None:
    side = Side("lazy")
    gradients = []
    for number in range(ROUNDS):
        side.optimizer.zero_grad()
        side.loss(number).backward()
        gradients.append([parameter.grad for parameter in side.net.parameters()])
        side.optimizer.step()
    assert repeated() > 0
    eager = Side("cpu")
    for number in range(ROUNDS):
        eager.optimizer.zero_grad()
        eager.loss(number).backward()
        for found, parameter in zip(gradients[number], eager.net.parameters(), strict=True):
            assert found is not None and parameter.grad is not None
            torch.testing.assert_close(found.cpu(), parameter.grad, rtol=1e-4, atol=1e-5)
        eager.optimizer.step()


def test_numbers_of_the_program_may_change() -> None:
    def change(number: int, side: Side) -> None:
        side.scale = 1.0 if number % 3 else 1.5

    compare(change, 9)


def test_parameters_may_be_frozen_and_thawed() -> None:
    def change(number: int, side: Side) -> None:
        side.net.up.weight.requires_grad_(number not in (4, 5))

    compare(change, 10)


def test_parameters_may_be_exchanged() -> None:
    def change(number: int, side: Side) -> None:
        if number == 4:
            side.net.tied = nn.Parameter(side.net.tied.detach() * 2)
            side.optimizer = torch.optim.SGD(side.net.parameters(), lr=0.01)
        if number == 6:
            up, down = side.net.up.bias, side.net.norm.bias
            up.data, down.data = down.data, up.data

    compare(change, 9)


def test_parts_without_gradients_are_not_confused() -> None:
    """The same calls with gradients of other operands."""

    def loss(number: int, side: Side) -> torch.Tensor:
        w, other = side.net.tied, side.net.up.weight[:8]
        if number % 2:
            with torch.no_grad():
                first = w * other
            second = w * side.net.down.weight[:, :8]
        else:
            first = w * other
            with torch.no_grad():
                second = w * side.net.down.weight[:, :8]
        return (first + second).sum()

    sides = Side("cpu"), Side("lazy")
    for number in range(8):
        found = []
        for side in sides:
            side.optimizer.zero_grad()
            loss(number, side).backward()
            found.append(side.net.tied.grad)
            smelt.lazy.step()
        assert found[0] is not None and found[1] is not None
        torch.testing.assert_close(found[1].cpu(), found[0])


@pytest.mark.parametrize("where", ["tensor", "leaf", "module", "after"])
def test_hooks_are_called(where: str) -> None:
    calls: dict[str, int] = {"cpu": 0, "lazy": 0}

    def change(number: int, side: Side) -> None:
        if number != 4:
            return

        def note(*args: Any) -> None:
            calls[side.device] += 1

        if where == "leaf":
            side.net.tied.register_hook(note)
        elif where == "after":
            side.net.tied.register_post_accumulate_grad_hook(note)
        elif where == "module":
            side.net.norm.register_full_backward_hook(note)
        else:
            plain = side.loss

            def hooked(number: int) -> torch.Tensor:
                loss = plain(number)
                loss.register_hook(note)
                return loss

            side.loss = hooked  # type: ignore[method-assign]

    compare(change, 8)
    assert calls["lazy"] == calls["cpu"] == 4


@pytest.mark.parametrize("what", ["weight", "input"])
def test_memory_that_is_exchanged_before_the_backward_is_read(what: str) -> None:
    """As in eager, which reads what tensors that it saved hold by then."""
    torch.manual_seed(0)
    weights, inputs = torch.randn(ROUNDS, 4, 4), torch.randn(ROUNDS, 4, 4)
    found = []
    for device in ("cpu", "lazy"):
        w = nn.Parameter(weights[0].to(device))
        for number in range(ROUNDS):
            w.grad = None
            x = inputs[number].to(device)
            loss = (x * w).square().sum()
            if number == ROUNDS - 2:
                exchanged = w if what == "weight" else x
                exchanged.data = weights[number].to(device)
            loss.backward()
            assert w.grad is not None
            found.append(w.grad.clone())
            smelt.lazy.step()
    assert repeated() >= 2
    for wanted, gradient in zip(found[:ROUNDS], found[ROUNDS:], strict=True):
        torch.testing.assert_close(gradient.cpu(), wanted)


def test_accumulated_gradients_are_added() -> None:
    sides = Side("cpu"), Side("lazy")
    for number in range(9):
        for side in sides:
            side.loss(number).backward()
            if number % 2:
                side.optimizer.step()
                side.optimizer.zero_grad(set_to_none=number % 4 == 1)
            side.kept += [parameter.detach().clone() for parameter in side.net.parameters()]
            smelt.lazy.step()
    for wanted, found in zip(sides[0].kept, sides[1].kept, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_a_second_backward_through_a_freed_graph_raises() -> None:
    side = Side("lazy")
    for number in range(ROUNDS):
        side.optimizer.zero_grad()
        loss = side.loss(number)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        side.optimizer.step()
    assert repeated() > 0


def test_a_retained_graph_and_gradients_of_inputs() -> None:
    def twice(loss: torch.Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    def change(number: int, side: Side) -> None:
        side.backward = twice if number % 4 == 3 else lambda loss: loss.backward()

    compare(change, 9)
    side = Side("lazy")
    for number in range(4):
        loss = side.loss(number)
        gradients = torch.autograd.grad(loss, list(side.net.parameters()))
        assert all(parameter.grad is None for parameter in side.net.parameters()) and len(gradients) == 7
        smelt.lazy.step()


def test_custom_functions_are_called() -> None:
    calls = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return gradient * 2

    w = nn.Parameter(torch.randn(4).to("lazy"))
    for _ in range(ROUNDS):
        w.grad = None
        Twice.apply(w).sum().backward()
        smelt.lazy.step()
    assert len(calls) == ROUNDS


def test_hooks_that_pack_saved_tensors_are_called() -> None:
    unpacked: list[int] = []

    def change(number: int, side: Side) -> None:
        plain = type(side).loss

        def packed(given: int) -> torch.Tensor:
            def unpack(tensor: torch.Tensor) -> torch.Tensor:
                unpacked.append(given)
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
                return plain(side, given)

        side.loss = packed if number == 4 else lambda given: plain(side, given)  # type: ignore[method-assign]

    compare(change, 7)
    assert set(unpacked) == {4}


def test_dropout_and_two_losses() -> None:
    sides = Side("cpu"), Side("lazy")
    for number in range(7):
        for side in sides:
            torch.manual_seed(number)
            side.optimizer.zero_grad()
            x = torch.ones(4, 8).to(side.device)
            first = F.dropout(side.net(x), 0.5).square().mean()
            second = side.net.tied.sum()
            first.backward()
            second.backward()
            side.kept += [parameter.grad.clone() for parameter in side.net.parameters() if parameter.grad is not None]
            side.optimizer.step()
    for wanted, found in zip(sides[0].kept, sides[1].kept, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_a_value_is_read_between_forward_and_backward() -> None:
    def read(loss: torch.Tensor) -> None:
        assert loss.item() >= 0
        loss.backward()

    def change(number: int, side: Side) -> None:
        side.backward = read if number in (3, 6) else lambda loss: loss.backward()

    compare(change, 9)


def test_rounds_on_other_threads() -> None:
    eager, lazy = Side("cpu"), Side("lazy")
    for number in range(8):
        eager.round(number)
        thread = threading.Thread(target=lazy.round, args=(number,))
        if number % 3 == 2:
            thread.start()
            thread.join()
        else:
            lazy.round(number)
    for wanted, found in zip(eager.kept, lazy.kept, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_a_second_model_is_recorded_as_the_first_was() -> None:
    side = Side("lazy")
    other = copy.deepcopy(side.net)
    for number in range(ROUNDS):
        side.round(number)
    before = repeated()
    freed = weakref.ref(side.net.tied)
    side.net, side.optimizer = other, torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.5)
    gc.collect()
    assert freed() is None
    for number in range(ROUNDS):
        side.round(number)
    assert all(parameter.grad is not None for parameter in other.parameters())
    assert repeated() > before > 0
