"""`with` blocks: grad modes, contextlib, context managers of the user, with and without exceptions."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.programs import Captured, compare

X = torch.arange(6.0).reshape(2, 3) / 3


class Manager:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(("exit", kind and kind.__name__, str(error), trace is None))
        return self.swallow


class Doubled:
    def __enter__(self):
        return 2

    def __exit__(self, *details):
        return None


@contextlib.contextmanager
def logged(log, name, swallow=()):
    log.append(f"{name} in")
    try:
        yield name
    except swallow as error:
        log.append(repr(error))
    finally:
        log.append(f"{name} out")


def grad_modes(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad(), torch.set_grad_enabled(True):
            b = x * 3
    with torch.set_grad_enabled(False):
        c = x * 4
    try:
        with torch.no_grad():
            raise ValueError
    except ValueError:
        d = x * 5
    return a, b, c, d, torch.is_grad_enabled()


@torch.no_grad()
def frozen(t):
    return t * 2


def decorated(x):
    return frozen(x), x * 3, torch.is_grad_enabled()


def own(x):
    log = []
    with Manager(log) as m, Doubled() as k:
        x = x * k
        log.append(m.log is log)
    with Manager(log, swallow=True):
        x = x + 1
        raise KeyError("gone")
    try:
        with Manager(log), Manager(log, swallow=False):
            raise IndexError("stays")
    except IndexError as error:
        log.append(str(error))
    return x, log


def returns_inside(x):
    log = []

    def inner(t):
        with Manager(log):
            return t + 1

    for n in range(3):
        with Manager(log):
            if n == 1:
                continue
            if n == 2:
                break
            x = x * 2
    return inner(x), log


def raises_in_enter_and_exit(x):
    log = []

    class_log = log.append
    try:
        with logged(log, "a"), Bad("enter", class_log):
            log.append("never")
    except RuntimeError as error:
        log.append(str(error))
    try:
        with logged(log, "b"), Bad("exit", class_log):
            raise KeyError("first")
    except RuntimeError as error:
        log.append((str(error), type(error.__context__).__name__))
    return x + 1, log


class Bad:
    def __init__(self, where, tell):
        self.where = where
        self.tell = tell

    def __enter__(self):
        if self.where == "enter":
            raise RuntimeError("bad enter")
        self.tell("entered")

    def __exit__(self, kind, error, trace):
        self.tell("leaving")
        raise RuntimeError("bad exit")


def generated(x):
    log = []
    with logged(log, "a") as name:
        x = x + len(name)
    with logged(log, "b", KeyError):
        raise KeyError("k")
    try:
        with logged(log, "c", KeyError):
            x = x * 2
            raise ValueError("v")
    except ValueError as error:
        log.append(str(error))
    with logged(log, "d"), logged(log, "e"):
        x = x - 1
    return x, log


@contextlib.contextmanager
def halved():
    with torch.no_grad():
        yield 0.5


@halved()
def as_decorator(t):
    return t * 2


def library(x):
    log = []
    with contextlib.nullcontext(3) as three:
        x = x * three
    with contextlib.suppress(KeyError, IndexError):
        log.append({}["a"])
    with contextlib.suppress(KeyError):
        x = x + 1
    with halved() as half:
        y = x * half
    with contextlib.closing(Closed(log)) as thing:
        log.append(type(thing).__name__)
    return x, y, log


class Closed:
    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


def maybe(x):
    for flag in (True, False):
        with torch.no_grad() if flag else contextlib.nullcontext():
            x = x * 2
    return x


WHOLE: list[Callable[..., Any]] = [
    grad_modes,
    decorated,
    own,
    returns_inside,
    raises_in_enter_and_exit,
    generated,
    library,
    maybe,
]


@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_without_a_break(function: Callable[..., Any], requires_grad: bool) -> None:
    runner = compare(function, X.clone().requires_grad_(requires_grad))
    assert runner.breaks == []
    assert runner.recompiles == []


def test_exit_stack() -> None:
    def f(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Manager(log, swallow=True))
            stack.callback(log.append, "callback")
            x = x + stack.enter_context(Doubled())
            raise KeyError("k")
        return x, log

    compare(f, X)


def test_inference_mode() -> None:
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y.is_inference(), x + 1

    compare(f, X)


def test_autocast() -> None:
    def f(x, w):
        y = x @ w
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ w
            with torch.autocast("cpu", enabled=False):
                b = x @ w
            c = torch.nn.functional.linear(a, w.T)
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                raise KeyError
        except KeyError:
            d = x @ w
        return y, a, b, c, d

    compare(f, X, torch.ones(3, 3))


@torch.autocast("cpu", dtype=torch.bfloat16)
def lowered(x, w):
    return x @ w


def test_autocast_as_a_decorator() -> None:
    compare(lowered, X, torch.ones(3, 3))


def test_breaks_inside() -> None:
    def f(x):
        log = []
        with torch.no_grad(), Manager(log, swallow=True), logged(log, "g"):
            x = x * 2
            print("inside", log)
            x = x + 1
            raise KeyError("k")
        return x, log

    runner = compare(f, X.clone().requires_grad_())
    assert runner.graphs


def test_break_in_exit() -> None:
    class Loud:
        def __enter__(self):
            print("in")

        def __exit__(self, kind, error, trace):
            print("out", kind, repr(error), trace is None)
            return True

    def f(x):
        with Loud():
            x = x + 1
            raise ValueError(x.dim())
        with Loud():
            x = x * 2
        return x

    compare(f, X)


def test_not_a_manager() -> None:
    def f(x):
        with x.dim():
            return x

    compare(f, X)


def test_grad_mode_after_an_exception_leaves() -> None:
    def f(x):
        with torch.no_grad():
            y = x * 2
            raise ValueError("left")
        return y

    runner = Captured()
    for _ in range(3):
        with pytest.raises(ValueError, match="left"):
            runner(f, X)
        assert torch.is_grad_enabled()
