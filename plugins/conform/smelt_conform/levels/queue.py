"""Level `queue`: work runs in order, and waiting waits long enough."""

import time

import torch

from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, expect, numbers, same
from smelt_conform.check import Check, Level

_PENDING = 3000


def _synchronize(bench: Bench) -> None:
    bench.keep_busy()
    event = bench.ask(bench.chip.record_event)
    bench.ask(bench.chip.synchronize)
    expect(bool(bench.ask(bench.chip.query_event, event)), "after synchronize() an event from before has not happened")


def _wait_event(bench: Bench) -> None:
    bench.keep_busy()
    event = bench.ask(bench.chip.record_event)
    bench.ask(bench.chip.wait_event, event)
    expect(bool(bench.ask(bench.chip.query_event, event)), "after wait_event() the event has not happened")
    bench.ask(bench.chip.wait_event, event)


def _event_waits(bench: Bench) -> None:
    """An event must not be reported before earlier work is done. Three attempts, because times are not exact."""
    left = []
    for _ in range(3):
        expected = bench.keep_busy()
        event = bench.ask(bench.chip.record_event)
        happened = bench.ask(bench.chip.query_event, event)
        start = time.perf_counter()
        bench.ask(bench.chip.synchronize)
        seconds = time.perf_counter() - start
        if not happened or seconds < 0.4 * expected:
            return
        left.append(seconds)
    text = f"{min(left) * 1e3:.0f} ms of earlier work were left when query_event() reported the event"
    expect(False, text)


def _events_happen(bench: Bench) -> None:
    """Without a call that waits."""
    event = bench.ask(bench.chip.record_event)
    end = time.perf_counter() + 10
    while not bench.ask(bench.chip.query_event, event):
        expect(time.perf_counter() < end, "an event that nobody waits for has not happened after ten seconds")
        time.sleep(0.001)


def _order_of_copies(bench: Bench) -> None:
    size = 1 << 16
    one, other = bench.put(bytes(size)), bench.put(bytes(size))
    bench.keep_busy()
    for number in range(1, 200):
        bench.put(bytes([number]) * size, one)
        bench.ask(bench.chip.copy_within, other, one, size)
    bench.put(bytes(size), one)
    expect(bench.get(other, size) == bytes([199]) * size, "copies ran out of order")


def _order_of_launches(bench: Bench) -> None:
    x, one, half = numbers(bench.name, 1000), torch.ones(1000).to(bench.name), torch.full((1000,), 0.5).to(bench.name)
    expected = numbers(HOST.type, 1000)
    x.add_(one).mul_(half)  # compiled
    expected.add_(1).mul_(0.5)
    bench.keep_busy()
    for _ in range(40):
        x.add_(one).mul_(half)
        expected.add_(1).mul_(0.5)
    same(x, expected, "a chain of launches, each on the result of the previous one,")


def _mixed(bench: Bench) -> None:
    """Copies and launches on the same memory."""
    x = torch.zeros(4096, device=bench.name)
    total = torch.zeros(4096, device=bench.name)
    total.add_(x)
    bench.keep_busy()
    for number in range(1, 30):
        x.copy_(torch.full((4096,), float(number)))
        total.add_(x)
    same(total, torch.full((4096,), 435.0), "a sum of tensors that were copied in between launches")


def _pending(bench: Bench) -> None:
    x, one = torch.zeros(16, device=bench.name), torch.ones(16).to(bench.name)
    x.add_(one)
    start = time.perf_counter()
    for _ in range(100):
        x.add_(one)
    asking = (time.perf_counter() - start) / 100 * _PENDING
    bench.keep_busy(min(10.0, 1.5 * asking))  # longer than it takes to queue all of them
    for _ in range(_PENDING):
        x.add_(one)
    same(x, torch.full((16,), _PENDING + 101.0), f"a sum of {_PENDING} launches that nobody waited for")


LEVEL = Level(
    "queue",
    "The queue",
    (
        Check("synchronize", "synchronize waits for everything", "synchronize()", _synchronize),
        Check("wait_event", "waiting for an event waits until it has happened", "wait_event()", _wait_event),
        Check(
            "event_waits",
            "an event happens after earlier work",
            "record_event(), query_event()",
            _event_waits,
        ),
        Check(
            "events_happen",
            "events happen without a call that waits",
            "query_event(): submit what is pending",
            _events_happen,
        ),
        Check(
            "order_of_copies",
            "copies happen in order",
            "one queue for everything, first in first out",
            _order_of_copies,
        ),
        Check(
            "order_of_launches", "launches happen in order", "launch(): a barrier between launches", _order_of_launches
        ),
        Check("mixed", "copies and launches happen in order", "a barrier between copies and launches", _mixed),
        Check("pending", "thousands of launches may be pending", "launch(): wait for room in the queue", _pending),
    ),
)
