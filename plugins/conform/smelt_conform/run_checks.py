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

_SECONDS = 0.15  # for which a part is timed
_LONGEST = 600  # characters of a reason


def bench_for(name: str, importing: str | None, compile: Callable[..., Any]) -> Bench:
    """Register a chip and return what checks work with.

    `importing`: "module:Class" makes the chip; "module" alone registers it, or has the installed one's classes known.
    """
    if importing is None:
        register_chip(name)
        return Bench(device_named(name), compile)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for python -m
    module_name, _, maker = importing.partition(":")
    try:
        module = importlib.import_module(module_name)
        made = getattr(module, maker)() if maker else None
    except (ImportError, AttributeError) as error:
        raise SmeltError("SM070", f"--import {importing} failed: {error}") from error
    if maker or name not in list_chips():
        register_chip(name, made)
    else:
        register_chip(name)
    return Bench(device_named(name), compile)


def run_check(name: str, check: Check, bench: Bench) -> Outcome:
    """`name` is the check's full name. Whatever it raises is its outcome."""
    before, launches, start = fallbacks(bench.name), events.counters["chip_launches"], time.perf_counter()
    status, reason, raised_at = PASSED, "", ""
    unraised: list[str] = []  # errors in destructors, which Python only prints: of `free`, mostly
    hook, sys.unraisablehook = sys.unraisablehook, lambda seen: unraised.append(_words(seen.exc_value or Exception()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)  # fallbacks are counted
        try:
            with bench.checking():
                check.run(bench)
                if offers(bench.chip, "synchronize"):  # it may not be written yet
                    bench.device.synchronize()  # errors that are told late belong to this check
        except (NotOffered, NotImplementedError) as error:
            status, reason = MISSING, _words(error)
        except CheckFailed as error:
            status, reason = FAILED, _words(error)
        except Exception as error:
            status, reason = FAILED, f"{type(error).__name__}: {_words(error)}"
            if not isinstance(error, ChipLost):  # what finds a loss is not its cause
                raised_at = _line_of(bench.chip, error)
    gc.collect()
    sys.unraisablehook = hook
    if status == PASSED and unraised:
        status, reason = FAILED, f"{len(unraised)} errors while memory was given back, as: {unraised[0]}"
    taken = time.perf_counter() - start
    after = fallbacks(bench.name)
    more = {each: count - before.get(each, 0) for each, count in after.items()}
    by_host = tuple((each, count) for each, count in more.items() if count)
    if status == PASSED and by_host:
        status, reason = ON_HOST, "computed by the host: " + ", ".join(each for each, _ in by_host)
    return Outcome(name, status, reason, taken, events.counters["chip_launches"] - launches, by_host, raised_at)


def _line_of(chip: object, error: BaseException | None) -> str:
    """The innermost line of the chip's own package that an error passed through."""
    packages = {each.__module__.partition(".")[0] for each in type(chip).__mro__} - {"smelt", "typing", "builtins"}
    found = ""
    while error is not None:
        for frame, line in traceback.walk_tb(error.__traceback__):
            if str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
                path = Path(frame.f_code.co_filename)
                found = f"{path.parent.name}/{path.name}:{line}, in {frame.f_code.co_name}()"
        if isinstance(error, NotImplementedError) and not found:
            return f"what is missing: {error}"  # a method of the contract that is not written yet
        error = error.__cause__
    return found


def _words(error: BaseException) -> str:
    said = f"{error.code}: {error.message}" if isinstance(error, SmeltError) else str(error)
    text = " ".join(said.split()) or type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"


def measure(measurement: Measurement, bench: Bench) -> Speed:
    """The best of several runs, each of which is waited for."""
    try:
        with bench.checking(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore", SmeltWarning)
            run, nbytes = measurement.prepare(bench)
            run()
            bench.device.synchronize()
            best, end = float("inf"), time.perf_counter() + _SECONDS
            while time.perf_counter() < end or best == float("inf"):
                start = time.perf_counter()
                run()
                bench.device.synchronize()
                best = min(best, time.perf_counter() - start)
        return Speed(measurement.name, best, nbytes)
    except Exception as error:
        return Speed(measurement.name, 0.0, 0, _words(error))


def _copies(bench: Bench) -> tuple[Callable[[], object], int]:
    size = min(32 << 20, (bench.target.memory_bytes or 1 << 30) // 8)
    one, other = bench.allocate(size), bench.allocate(size)
    return lambda: bench.ask(bench.chip.copy_within, one, other, size), 2 * size


COPY = Measurement("copy within", _copies)
"""What all others are held against: bytes read and written by `copy_within`."""
