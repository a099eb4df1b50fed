"""Faults of a chip: each gives a clear error, nothing hangs, and nothing stays in its memory."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.chips import device_named

ROOT = Path(__file__).parents[2]


def test_no_room_is_pytorchs_error(sim: Any) -> None:
    before = sim.memory
    sim.memory = sim.used + 1000
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"'sim' has no room for 4000 bytes; \d+ allocations of"):
            torch.empty(1000, device="sim")
        assert torch.empty(100, device="sim").shape == (100,)
    finally:
        sim.memory = before


def test_a_failing_compile_says_so_and_may_succeed_later(sim: Any) -> None:
    x = torch.arange(4.0, device="sim")
    sim.fail("compile", RuntimeError("the assembler has a bad day"), times=2)  # for any size, then for this one
    with pytest.raises(smelt.SmeltError, match=r"SM071: compile of the chip 'sim' raised .*a bad day"):
        x.atan2(x).cpu()
    torch.testing.assert_close(x.atan2(x).cpu(), torch.arange(4.0).atan2(torch.arange(4.0)))


def test_a_failing_launch_is_raised_by_what_waits_for_it(sim: Any) -> None:
    x = torch.arange(4.0, device="sim")
    (x + 1).cpu()
    sim.fail("launch", RuntimeError("a kernel was stopped"))
    with pytest.raises(smelt.SmeltError, match=r"SM071: .* chip 'sim' raised RuntimeError: a kernel was stopped"):
        (x + 1).cpu()
    assert torch.equal((x + 1).cpu(), torch.arange(4.0) + 1)


def test_a_failing_launch_is_told_though_the_next_thing_is_compiled(sim: Any) -> None:
    # Errors while compiling lead to attempts at other kernels; this one is not of the kernels that are compiled.
    x = torch.arange(4.0, device="sim")
    (x + 1).cpu()
    for attempt in (lambda: (x + 1).erf(), lambda: smelt.compile(lambda a: a.asinh() - 1)(x + 1)):
        sim.fail("launch", RuntimeError("a kernel was stopped"))
        with pytest.raises(smelt.SmeltError, match=r"SM071: .* chip 'sim' raised RuntimeError: a kernel was stopped"):
            attempt().cpu()
    assert torch.equal((x + 1).cpu(), torch.arange(4.0) + 1)


def test_an_address_that_is_not_the_devices_is_found(sim: Any) -> None:
    with pytest.raises(ValueError, match="are not the device's"):
        sim._pointer(device_named("sim").chip._next + 10)  # type: ignore[attr-defined]


def test_a_slow_queue_changes_nothing(sim: Any) -> None:
    x = torch.arange(4.0, device="sim")
    sim.delay = 0.01
    try:
        assert torch.equal((x * 2 + 1).cpu(), torch.arange(4.0) * 2 + 1)
        event = sim.record_event()
        sim.wait_event(event)
        assert sim.query_event(event)
    finally:
        sim.delay = 0.0


def test_a_lost_device_is_told_at_once_and_for_ever() -> None:
    program = """
        import sys
        sys.path.insert(0, "plugins/sim")
        import torch, smelt
        from smelt.chips import device_named
        from smelt_sim import Sim
        sim = Sim()
        smelt.register_chip("sim", sim)
        x = torch.ones(3, device="sim")
        y = x + 1
        sim.lose()
        for attempt in (lambda: y.cpu(), lambda: x + 2, lambda: torch.empty(3, device="sim")):
            try:
                attempt()
            except smelt.SmeltError as error:
                assert error.code == "SM071" and "lost" in str(error), error
            else:
                raise AssertionError("no error")
        del x, y, attempt
        smelt.reset()
        import gc
        gc.collect()
        print(device_named("sim").allocations)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"
