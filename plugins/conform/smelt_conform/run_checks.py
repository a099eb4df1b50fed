"""Runs checks and measurements of a chip in this process: a check → its `Outcome`, a measurement → its `Speed`."""

import gc
import importlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from smelt.base import events
from smelt.base.errors import SmeltError, SmeltWarning
from smelt.chips import device_named, fallbacks, list_chips, register_chip
from smelt.device import ChipLost
from smelt.device.chip import offers
from smelt_conform.bench import Bench, CheckFailed, NotOffered
from smelt_conform.check import FAILED, MISSING, ON_HOST, PASSED, Check, Measurement, Outcome, Speed

_MEASURE_SECONDS = 0.15
_MAX_REASON_CHARACTERS = 600


def bench_for(name: str, importing: str | None, compile: Callable[..., Any]) -> Bench:
    """Register a chip and return its `Bench`.

    `importing`: "module:Class" names the class to instantiate; a "module" alone may register the chip itself.
    """
    if importing is None:
        register_chip(name)
        return Bench(device_named(name), compile)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for python -m
    module_name, _, class_name = importing.partition(":")
    try:
        module = importlib.import_module(module_name)
        chip = getattr(module, class_name)() if class_name else None
    except (ImportError, AttributeError) as error:
        raise SmeltError("SM070", f"--import {importing} failed: {error}") from error
    if class_name or name not in list_chips():
        register_chip(name, chip)
    else:
        register_chip(name)
    return Bench(device_named(name), compile)


def run_check(name: str, check: Check, bench: Bench) -> Outcome:
    """Run a check; `name` is its full name. An exception becomes its outcome."""
    before, launches, start = fallbacks(bench.name), events.counters["chip_launches"], time.perf_counter()
    status, reason, raised_at = PASSED, "", ""
    unraised: list[str] = []  # errors in destructors, mostly of `free`, which Python only prints
    hook = sys.unraisablehook
    sys.unraisablehook = lambda raised: unraised.append(_text_of(raised.exc_value or Exception()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)  # fallbacks are counted
        try:
            with bench.checking():
                check.run(bench)
                if offers(bench.chip, "synchronize"):  # it may not be implemented yet
                    bench.device.synchronize()  # late errors belong to this check
        except (NotOffered, NotImplementedError) as error:
            status, reason = MISSING, _text_of(error)
        except CheckFailed as error:
            status, reason = FAILED, _text_of(error)
        except Exception as error:
            status, reason = FAILED, f"{type(error).__name__}: {_text_of(error)}"
            if not isinstance(error, ChipLost):  # the line that notices the loss is not its cause
                raised_at = _line_of(bench.chip, error)
    gc.collect()
    sys.unraisablehook = hook
    if status == PASSED and unraised:
        status, reason = FAILED, f"{len(unraised)} errors while memory was freed, for example: {unraised[0]}"
    seconds = time.perf_counter() - start
    after = fallbacks(bench.name)
    new_counts = {operator: count - before.get(operator, 0) for operator, count in after.items()}
    by_host = tuple((operator, count) for operator, count in new_counts.items() if count)
    if status == PASSED and by_host:
        status, reason = ON_HOST, "computed by the host: " + ", ".join(operator for operator, _ in by_host)
    return Outcome(name, status, reason, seconds, events.counters["chip_launches"] - launches, by_host, raised_at)


def _line_of(chip: object, error: BaseException | None) -> str:
    """The innermost line of the chip's own package that an error passed through."""
    packages = {base.__module__.partition(".")[0] for base in type(chip).__mro__} - {"smelt", "typing", "builtins"}
    place = ""
    while error is not None:
        for frame, line in traceback.walk_tb(error.__traceback__):
            if str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
                path = Path(frame.f_code.co_filename)
                place = f"{path.parent.name}/{path.name}:{line}, in {frame.f_code.co_name}()"
        if isinstance(error, NotImplementedError) and not place:
            return f"what is missing: {error}"  # a method that is not implemented yet
        error = error.__cause__
    return place


def _text_of(error: BaseException) -> str:
    message = f"{error.code}: {error.message}" if isinstance(error, SmeltError) else str(error)
    text = " ".join(message.split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON_CHARACTERS else text[:_MAX_REASON_CHARACTERS] + " …"


def measure(measurement: Measurement, bench: Bench) -> Speed:
    """The fastest of several runs, each followed by a synchronization."""
    try:
        with bench.checking(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore", SmeltWarning)
            run, nbytes = measurement.prepare(bench)
            run()
            bench.device.synchronize()
            best, end = float("inf"), time.perf_counter() + _MEASURE_SECONDS
            while time.perf_counter() < end or best == float("inf"):
                start = time.perf_counter()
                run()
                bench.device.synchronize()
                best = min(best, time.perf_counter() - start)
        return Speed(measurement.name, best, nbytes)
    except Exception as error:
        return Speed(measurement.name, 0.0, 0, _text_of(error))


def _copies(bench: Bench) -> tuple[Callable[[], object], int]:
    size = min(32 << 20, (bench.target.memory_bytes or 1 << 30) // 8)
    one, other = bench.allocate(size), bench.allocate(size)
    return lambda: bench.ask(bench.chip.copy_within, one, other, size), 2 * size


COPY = Measurement("copy within", _copies)
"""The baseline of the other measurements."""
