"""Level `threads`: several threads use the chip. smelt calls one method at a time, from any thread."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, expect, numbers, same
from smelt_conform.check import Check, Level

_THREADS = 4


def _in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Run `work` in threads; raise the first error."""
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(_THREADS)]


def _another(bench: Bench) -> None:
    """Call every method from a thread that did not create the chip."""
    source = bench.put(b"abcd" * 100)

    def work(number: int) -> bytes:
        with bench.device.lock:
            address = bench.put(bytes([number]) * 400)
            bench.ask(bench.chip.copy_within, address, source, 200)
            bench.ask(bench.chip.wait_event, bench.ask(bench.chip.record_event))
            data = bench.get(address, 400)
            bench.free(address)
        return data

    for number, data in enumerate(_in_threads(work)):
        expect(data == b"abcd" * 50 + bytes([number]) * 200, f"thread {number} read other bytes than it wrote")


def _computing(bench: Bench) -> None:
    def work(device: str) -> Callable[[int], torch.Tensor]:
        def run(number: int) -> torch.Tensor:
            x = numbers(device, 40, 40, seed=number)
            for _ in range(20):
                x = (x @ x).softmax(-1) + number
            return x.cpu()

        return run

    for number, result in enumerate(_in_threads(work(bench.name))):
        same(result, work(HOST.type)(number), f"the result of thread {number}")


def _training(bench: Bench) -> None:
    """Backward passes at the same time: autograd has threads of its own."""

    def work(number: int) -> Any:
        w = numbers(bench.name, 12, 12, seed=number).requires_grad_()
        for _ in range(10):
            loss: Any = (w.tanh() @ w).square().mean()
            loss.backward()
        return w.grad

    for number, total in enumerate(_in_threads(work)):
        w = numbers(HOST.type, 12, 12, seed=number).requires_grad_()
        (grad,) = torch.autograd.grad((w.tanh() @ w).square().mean(), [w])
        same(total / 10, grad, f"the gradient of thread {number}")


def _handed_over(bench: Bench) -> None:
    """Memory that one thread allocates and another frees."""
    before = bench.device.allocations
    held = [[torch.ones(1000, device=bench.name) for _ in range(20)] for _ in range(_THREADS)]
    sums = _in_threads(lambda number: sum(tensor.sum().item() for tensor in held[number]))
    _in_threads(lambda number: held[number].clear())
    expect(sums == [20_000.0] * _THREADS, f"sums of ones are {sums}")
    expect(bench.device.allocations <= before + 1, "memory that other threads have freed is still in use")


_AFFINITY = "per-thread state, such as the current context of a driver: set it in each method"

LEVEL = Level(
    "threads",
    "Threads",
    (
        Check("another", "every method may be called by any thread", _AFFINITY, _another),
        Check("computing", "threads that compute at the same time", _AFFINITY, _computing),
        Check("training", "backward passes at the same time", _AFFINITY, _training),
        Check("handed_over", "memory that another thread frees", "free(): call it from any thread", _handed_over),
    ),
)
