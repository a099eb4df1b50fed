"""Loops whose rounds repeat are launched without a look-up. Whatever changes between two rounds is seen."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.lazy.timeline import LazyRun


def repeats() -> int:
    return int(smelt.counters["lazy_repeats"])


def both(make: Callable[[str], Callable[[int], Any]], rounds: int = 10) -> int:
    """Run a loop on the host and on lazy tensors, compare what each round returns, and count repeated rounds."""
    found: dict[str, list[Any]] = {}
    before = 0
    for device in ("cpu", "lazy"):
        torch.manual_seed(0)
        one_round, before = make(device), repeats()
        results = [one_round(number) for number in range(rounds)]
        smelt.lazy.step()
        found[device] = [[each.detach().cpu() for each in result] for result in results]
    for number, (mine, theirs) in enumerate(zip(found["lazy"], found["cpu"], strict=True)):
        for one, other in zip(mine, theirs, strict=True):
            close = torch.allclose(one.double(), other.double(), rtol=1e-9, atol=1e-11, equal_nan=True)
            assert close and one.shape == other.shape and one.dtype == other.dtype, (number, one, other)
    return repeats() - before


def trainer(device: str, change: Callable[[Any, int], None] = lambda optimizer, number: None) -> Callable[[int], Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).double().to(device)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(20, 5, 6, dtype=torch.float64)

    def one_round(number: int) -> Any:
        change(optimizer, number)
        optimizer.zero_grad()
        loss = model(data[number].to(device)).square().mean()
        loss.backward()
        optimizer.step()
        return [loss, *(each.detach().clone() for each in model.parameters())]

    return one_round


def test_a_training_loop_repeats() -> None:
    assert both(trainer, 12) >= 6
    run: LazyRun = [each for each in smelt.lazy.explain().runs if each.reason == "an optimizer's step"][-1]
    assert run.how == "cached" and "test_repeated_loops.py" in run.line


def test_results_that_own_their_memory() -> None:
    """Gradients that a program computes as parts of one result are copied."""

    def make(device: str) -> Callable[[int], Any]:
        w, v = (torch.randn(8, 8, dtype=torch.float64).to(device).requires_grad_() for _ in range(2))
        x = torch.randn(5, 8, dtype=torch.float64).to(device)

        def one_round(number: int) -> Any:
            q = F.conv1d(x[None], torch.ones(8, 5, 1, dtype=torch.float64, device=device))
            loss = (x @ w + x @ v).tanh().sum() * q.mean() + x.sum() * w.mean()
            w.grad, v.grad = torch.autograd.grad(loss, [w, v])
            smelt.lazy.step()
            assert w.grad is not None and v.grad is not None
            first = w.grad.clone()
            w.grad.mul_(2)
            smelt.lazy.step()
            return [first, w.grad.clone(), v.grad.clone()]

        return one_round

    assert both(make) >= 4


def test_a_rate_that_changes_every_round() -> None:
    def change(optimizer: Any, number: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 / (number + 1)

    assert both(lambda device: trainer(device, change), 12) >= 5


def test_equal_rates_that_part() -> None:
    """Numbers that were equal for all parameters are one operand, until they differ."""

    def make(device: str) -> Callable[[int], Any]:
        params = [torch.ones(4, dtype=torch.float64).to(device).requires_grad_() for _ in range(3)]
        optimizer = torch.optim.SGD([{"params": [each], "lr": 0.1} for each in params])

        def one_round(number: int) -> Any:
            for place, group in enumerate(optimizer.param_groups):
                group["lr"] = 0.1 / (number + 1) if number < 6 else 0.1 / (number + 1 + place)
            optimizer.zero_grad()
            sum((each.sin() * (place + 1)).sum() for place, each in enumerate(params)).backward()  # type: ignore[union-attr]
            optimizer.step()
            return [each.detach().clone() for each in params]

        return one_round

    both(make, 14)


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (2, 2.0), (1, True), (float("nan"), float("inf")), (3, 5)])
def test_numbers_that_look_alike(numbers: tuple[Any, Any]) -> None:
    def make(device: str) -> Callable[[int], Any]:
        x = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64).to(device)

        def one_round(number: int) -> Any:
            value = numbers[0] if number < 5 or number == 8 else numbers[1]
            y = [x * value, torch.full((2,), value, device=device), 1 / (x * value + value)]
            smelt.lazy.step()
            return y

        return one_round

    both(make)


def test_other_values_alive_and_other_sizes() -> None:
    def make(device: str) -> Callable[[int], Any]:
        kept: list[torch.Tensor] = []

        def one_round(number: int) -> Any:
            x = torch.arange(4.0 if number != 7 else 6.0, dtype=torch.float64).to(device)
            y = x.exp()
            z = y[1:].sum() + number
            if number % 3 == 2:
                kept.append(y)
            w = torch.outer(y, x)
            del y
            smelt.lazy.step()
            return [z, w, *kept]

        return one_round

    assert both(make, 12) >= 2


def test_branches_on_values() -> None:
    def make(device: str) -> Callable[[int], Any]:
        x = torch.ones(3, dtype=torch.float64).to(device)

        def one_round(number: int) -> Any:
            nonlocal x
            x = x * 1.5
            x = x - 3 if x.sum() > 6 else x + 1
            return [x]

        return one_round

    both(make, 20)


def test_writes_in_place_views_and_shared_memory() -> None:
    def make(device: str) -> Callable[[int], Any]:
        state = torch.zeros(4, 4, dtype=torch.float64).to(device)
        other = torch.ones(4, dtype=torch.float64).to(device)

        def one_round(number: int) -> Any:
            row = state[number % 2 if number < 6 else 3]  # another view from the sixth round on
            row.add_(other).mul_(1.25)
            if number == 8:
                other.add_(row)
            state.t()[0].sub_(0.5)
            same = state.detach()
            smelt.lazy.step()
            return [state.clone(), same.clone(), row.clone()]

        return one_round

    both(make, 12)


def test_memory_that_is_exchanged_between_rounds() -> None:
    def make(device: str) -> Callable[[int], Any]:
        a, b = (torch.full((3,), value, dtype=torch.float64).to(device) for value in (1.0, 2.0))

        def one_round(number: int) -> Any:
            nonlocal a, b
            a.add_(b)
            if number % 2:
                a, b = b, a
            if number == 7:
                a.data = b.data
            smelt.lazy.step()
            return [a.clone(), b.clone()]

        return one_round

    both(make, 12)


def test_random_numbers_differ_from_round_to_round() -> None:
    def make(device: str) -> Callable[[int], Any]:
        x = torch.ones(50, dtype=torch.float64).to(device)

        def one_round(number: int) -> Any:
            y = F.dropout(x, 0.5) + torch.rand(50, dtype=torch.float64, device=device)
            smelt.lazy.step()
            return [y]

        return one_round

    both(make, 8)


def test_errors_in_a_round_leave_the_loop_right() -> None:
    def make(device: str) -> Callable[[int], Any]:
        table = torch.arange(6, dtype=torch.float64).to(device).requires_grad_()

        def one_round(number: int) -> Any:
            index = torch.tensor([1, 9 if number == 5 else 2]).to(device)
            try:
                picked = table[index] * 2
                total = picked.sum()
                value = total.item()
            except IndexError:
                return [table.detach().clone()]
            if number == 7:
                with pytest.raises(RuntimeError, match="size"):
                    picked + torch.ones(5, device=device)
            return [torch.tensor(value), picked]

        return one_round

    assert both(make, 10) >= 2


def test_rounds_under_other_settings_of_pytorch() -> None:
    def make(device: str) -> Callable[[int], Any]:
        w = torch.randn(4, 4, dtype=torch.float64).to(device)

        def one_round(number: int) -> Any:
            with torch.set_grad_enabled(number % 3 != 0), torch.inference_mode(number == 7):
                y = torch.mm(w, w).tanh()
                smelt.lazy.step()
                z = torch.mm(y, w)
                smelt.lazy.step()
            return [y, z]

        return one_round

    assert both(make, 10) >= 3


def test_loops_in_two_threads() -> None:
    results: dict[int, torch.Tensor] = {}

    def loop(number: int) -> None:
        x = torch.ones(8, dtype=torch.float64).to("lazy")
        for _ in range(30):
            x = x * 0.5 + number
            smelt.lazy.step()
        results[number] = x.cpu()

    threads = [threading.Thread(target=loop, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2):
        wanted = torch.ones(8, dtype=torch.float64)
        for _ in range(30):
            wanted = wanted * 0.5 + number
        torch.testing.assert_close(results[number], wanted)


def test_numbers_that_no_input_decides_are_read_once() -> None:
    def make(device: str) -> Callable[[int], Any]:
        x = torch.ones(3, dtype=torch.float64).to(device)

        def one_round(number: int) -> Any:
            y = x * (number + 1)
            limit = 4 if number < 8 else 2
            places = torch.arange(4, device=device)
            is_small = bool((places < limit).all())
            written = torch.zeros(2, device=device)
            written.add_(number)
            total = written.sum().item()
            result = y.sum() if is_small else y.sum() * 100
            smelt.lazy.step()
            return [result, torch.tensor(total)]

        return one_round

    both(make, 12)


def test_a_question_of_a_mask_runs_nothing_again() -> None:
    x = torch.ones(5, device="lazy")
    runs = []
    for _ in range(6):
        y = x + 1
        assert (torch.arange(8, device="lazy") >= 0).all()
        before = smelt.lazy.explain().run_count
        smelt.lazy.step()
        runs.append(smelt.lazy.explain().run_count - before)
        assert y.sum().item() == 10
    count = smelt.lazy.explain().run_count
    y = x + 1
    assert (torch.arange(8, device="lazy") >= 0).all()
    assert smelt.lazy.explain().run_count == count and smelt.lazy.explain().pending > 1


OPERATIONS: tuple[Callable[..., Any], ...] = (
    lambda x, y, number: x + y * number,
    lambda x, y, number: x.tanh(),
    lambda x, y, number: (x * y).cumsum(0),
    lambda x, y, number: torch.mm(x, y.t()) * 0.1,
    lambda x, y, number: x.clone().mul_(0.5).add_(y),
    lambda x, y, number: torch.where(x > y, x, y * number),
    lambda x, y, number: x.t(),
    lambda x, y, number: x[:, 1:].sum(1, keepdim=True).expand(4, 4),
    lambda x, y, number: torch.cat([x[:2], y[2:]]),
    lambda x, y, number: x.softmax(-1),
)


EVENTS = ("number", "keep", "write", "cut", "grad", "ask")


@pytest.mark.parametrize("seed", range(24))
def test_random_loops(seed: int) -> None:
    """Rounds of one random body; some rounds have other numbers, keep other values, write the state or end early."""

    def make(device: str) -> Callable[[int], Any]:
        chance = random.Random(seed)
        length = chance.randrange(4, 14)
        body = [(chance.choice(OPERATIONS), chance.randrange(6), chance.randrange(6)) for _ in range(length)]
        odd = {number: chance.choice(EVENTS) for number in chance.sample(range(12), 5)}
        state = torch.randn(4, 4, dtype=torch.float64).to(device).requires_grad_(chance.random() < 0.5)
        kept: list[torch.Tensor] = []

        def one_round(number: int) -> Any:
            event = odd.get(number, "")
            factor = 0.25 if event == "number" else 0.5
            values = [state, state + 1]
            for place, (operation, one, other) in enumerate(body):
                value = operation(values[one % len(values)], values[other % len(values)], factor)
                values.append(value.contiguous().sin())
                if event == "cut" and place == 2:
                    smelt.lazy.step()
                if event == "ask" and place == 1 and values[-1].sum() > 0:
                    values.append(values[-1] * 2)
            result = values[-1]
            grads = []
            if result.requires_grad and event != "grad":
                grads = list(torch.autograd.grad(result.sum(), [state]))
            with torch.no_grad():
                if event == "write":
                    state[1].add_(result.detach()[0])
                state.mul_(0.9).add_(result.detach(), alpha=0.05)
            if event == "keep":
                kept.append(values[2])
            smelt.lazy.step()
            return [result, state.detach().clone(), *grads, *kept]

        return one_round

    both(make, 14)


def test_the_default_dtype_changes() -> None:
    """It decides about the dtype of results, when they are recorded; programs are compiled for each."""

    def make(device: str) -> Callable[[int], Any]:
        whole = torch.tensor([3, 4], device=device)

        def one_round(number: int) -> Any:
            torch.set_default_dtype(torch.float64 if number // 3 % 2 else torch.float32)
            results = [torch.full((3,), 0.1, device=device), torch.arange(0, 1, 0.3, device=device), whole / 3]
            kept = [(results[0] * 3).sum()]
            torch.set_default_dtype(torch.float32)  # before anything has run
            return [*results, *kept, torch.tensor(kept[0].item(), dtype=torch.float64)]

        return one_round

    try:
        both(make, 12)
    finally:
        torch.set_default_dtype(torch.float32)
