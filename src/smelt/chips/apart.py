"""Compiled code and the compiler, run for a caller that may be in the middle of PyTorch's dispatcher.

    run_here(run, inputs)     what is compiled already: in this thread
    run_apart(run, inputs)    what may compile: in a thread of its own, without the program's modes
"""

import threading
from collections.abc import Callable
from typing import Any

import torch

from smelt.base import events
from smelt.chips.lazy_chip import on_chip

_thread = threading.local()


def calls_under_way() -> list[Any]:
    """The calls that this thread is in the middle of, and those for which it was started."""
    calls: list[Any] | None = getattr(_thread, "calls", None)
    if calls is None:
        calls = _thread.calls = []
    return calls


def run_here(run: Callable[..., Any], inputs: list[Any]) -> Any:
    with on_chip(), torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch.no_grad():
        return run(*inputs)


def run_apart(run: Callable[..., Any], inputs: list[Any]) -> Any:
    """In a thread of its own: the caller may be inside of PyTorch's dispatcher, with modes of the program's on."""
    results: list[Any] = []
    errors: list[BaseException] = []
    stack = list(calls_under_way())

    def work() -> None:
        _thread.calls = stack
        try:
            results.append(run_here(run, inputs))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=events.carrying(lambda _: work()), args=(None,), name="smelt-chip")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
