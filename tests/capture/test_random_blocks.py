"""Random programs of nested blocks (try, with, match, loops, generators, raise), held against plain Python."""

import contextlib
import dataclasses
import functools
import itertools
import linecache
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.capture.programs import compare

NAMES = ["x", "y", "z"]
ERRORS = ["ValueError", "KeyError", "Fault", "Deeper", "IndexError", "(KeyError, Fault)", "Exception"]
RAISED = [
    "ValueError('v')", "KeyError({k})", "Fault('f', {k})", "Deeper('d', code={k})", "IndexError",
    "Fault('g') from cause",
]  # fmt: skip
SIMPLE = [
    "{t} = {a} + {b}", "{t} = {a} * {k}", "{t} = callee({a}, {k})", "log.append({k})", "print('at', {k})",
    "log.append({{'a': 1}}[{s}])", "log.append([1, 2][{k}])", "n = n + 10 // {k}", "n = n - {k}", "{t} = {a}.relu()",
    "raise {r}", "raise", "assert n < {k}, f'{{n:>3}}'", "log.append(next(source))", "n = n + len(f'{{n}}-{{log!r}}')",
    "first, *rest = [{k}, *range(n % 3)]\nlog.append(rest)", "{t} = point({a}, {k}).total()",
    "log.append(sorted([3, n, {k}], key=lambda v: -v))", "log.extend(itertools.chain([{k}], (n,)))",
    "{t} = functools.reduce(lambda p, q: p + q, [{a}, {b}])", "log.append(getattr({a}, {s}, {k}))", "int({s})",
    "log.append([v for v in gen(n % 4) if v != {k}])", "n = max([n, {k}], key=lambda v: v % 3)",
    "log.append(undefined)", "return {a} + n, log",
    "graph_break()", "if {a}.sum() > {k}:\n    n = n + 1", "del {t}", "log.append((n := n + 1))",
    "log.append(Fault('s', {k}) == n)", "{t} = {a} if 0 < {k} <= n else {b}", "log.append(str(cause) + repr(cause))",
]  # fmt: skip
BLOCKS = ["try", "try", "try", "with", "for", "while", "if", "match"]
MANAGERS = [
    "torch.no_grad()", "Manager(log, {k})", "contextlib.suppress({c})", "logged(log)", "contextlib.nullcontext()"
]  # fmt: skip


def block(draw: st.DrawFn, depth: int, loop: bool) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += statement(draw, depth, loop)
    return lines


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def statement(draw: st.DrawFn, depth: int, loop: bool) -> list[str]:
    words: dict[str, Any] = {name: draw(st.sampled_from(NAMES)) for name in "abt"}
    words |= {"k": draw(st.integers(0, 3)), "s": draw(st.sampled_from(["'a'", "'b'", "'shape'", "'7'"]))}
    words["c"] = draw(st.sampled_from(ERRORS))
    words["r"] = draw(st.sampled_from(RAISED)).format(**words)
    kind = draw(st.sampled_from(["simple", "simple", *BLOCKS])) if depth else "simple"
    if kind == "try":
        return _try(draw, depth - 1, loop)
    if kind == "with":
        return [f"with {draw(st.sampled_from(MANAGERS)).format(**words)}:", *indented(block(draw, depth - 1, loop))]
    if kind == "for":
        return [f"for i in range({words['k']}):", *indented(block(draw, depth - 1, True))]
    if kind == "while":
        body = indented(block(draw, depth - 1, True))
        turns = f"turns{depth}"
        return [f"{turns} = 0", f"while {turns} < 2:", f"    {turns} += 1", *body, "else:", "    log.append('else')"]
    if kind == "if":
        return [f"if n > {words['k']}:", *indented(block(draw, depth - 1, loop)), "else:", "    log.append('no')"]
    if kind == "match":
        first, second = indented(block(draw, depth - 1, loop)), indented(block(draw, depth - 1, loop))
        subject = draw(st.sampled_from(["n", "log", "point(n, 1)", "{'k': n}", "cause"]))
        cases = draw(st.permutations(["case [_, *rest]:", "case Point(v, 1):", "case {'k': k}:", "case 0 | 1 | 2:"]))
        return [f"match {subject}:", f"    {cases[0]}", *indented(first), f"    {cases[1]}", *indented(second)]
    choices = [*SIMPLE, "break", "continue"] if loop else SIMPLE
    return draw(st.sampled_from(choices)).format(**words).split("\n")


def _try(draw: st.DrawFn, depth: int, loop: bool) -> list[str]:
    lines = ["try:", *indented(block(draw, depth, loop))]
    handlers = draw(st.lists(st.sampled_from(ERRORS), max_size=2, unique=True))
    for number, caught in enumerate(handlers):
        note = ["log.append((type(e).__name__, str(e), e.args))", "cause = e"] if number == 0 else []
        head = f"except {caught} as e:" if number == 0 else f"except {caught}:"
        lines += [head, *indented(note + block(draw, depth, loop))]
    if handlers and draw(st.booleans()):
        lines += ["else:", *indented(block(draw, depth, loop))]
    if not handlers or draw(st.booleans()):
        lines += ["finally:", *indented(block(draw, depth, loop))]
    return lines


@st.composite
def programs(draw: st.DrawFn) -> str:
    head = ["z = x - y", "log = []", "cause = None", "source = gen(2)"]
    body = [line for _ in range(draw(st.integers(1, 3))) for line in statement(draw, 3, False)]
    inner = ["def callee(t, k):", "    nonlocal n"]
    inner += indented(["n = n + 1", "if k == 2:", "    raise Deeper('callee', code=n)", "return t * k + n"])
    return "\n".join(["def program(x, y, n):", *indented([*head, *inner, *body, "return x, y, z, n, log"])]) + "\n"


class Fault(Exception):
    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Deeper(Fault):
    def __str__(self) -> str:
        return f"deeper {self.code}"


class Manager:
    def __init__(self, log: list[Any], k: int) -> None:
        self.log = log
        self.k = k

    def __enter__(self) -> int:
        self.log.append("enter")
        return self.k

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.log.append(("exit", None if kind is None else kind.__name__))
        return self.k == 3


@contextlib.contextmanager
def logged(log: list[Any]) -> Iterator[None]:
    log.append("in")
    try:
        yield
    except KeyError as error:
        log.append(repr(error))
        raise Fault("from logged") from error
    finally:
        log.append("out")


@dataclasses.dataclass
class Point:
    x: Any
    k: int

    def total(self) -> Any:
        return self.x + self.k


def gen(count: int) -> Iterator[int]:
    for i in range(count):
        yield i
        if i == 2:
            raise Fault("in gen")


WORLD = {
    "torch": torch, "contextlib": contextlib, "functools": functools, "itertools": itertools, "Fault": Fault,
    "Deeper": Deeper, "Manager": Manager, "logged": logged, "Point": Point, "point": Point, "gen": gen,
}  # fmt: skip


def run(text: str, n: int, requires_grad: bool) -> None:
    def graph_break() -> None:
        print("break", end="")

    namespace: dict[str, Any] = {**WORLD, "graph_break": graph_break}
    name = f"<program {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), namespace)
    x = torch.arange(6.0).reshape(2, 3).requires_grad_(requires_grad)
    compare(namespace["program"], x, torch.ones(2, 3) / 2, n, calls=2)


@settings(max_examples=120, deadline=None)
@given(programs(), st.integers(0, 3), st.booleans())
def test_blocks_are_what_python_makes_of_them(text: str, n: int, requires_grad: bool) -> None:
    run(text, n, requires_grad)
