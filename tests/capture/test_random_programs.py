"""Random straight-line programs with branches, containers and breaks, held against plain Python."""

import linecache
import types
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.capture.programs import compare

EXPRESSIONS = [
    "{a} + {b}", "{a} * {b}", "torch.relu({a}) - {b}", "{a}.sum() + {b}", "torch.maximum({a}, {b})", "{a} * {k}",
    "({a} if n > {k} else {b})", "helper({a}, {b}, k={k})", "[{a}, {b}][{k} % 2]", "{{'p': {a}, 'q': {b}}}['p']",
    "sum([{a}, {b}])", "{a}.reshape(-1).reshape(2, 3) + {b}", "(lambda t: t * n + {b})({a})", "{a}[0] + {b}",
]  # fmt: skip
STATEMENTS = [
    "{t} = {e}", "{t} = {e}", "{t} = {e}", "print('n', n)", "print({a}.sum() > 0)", "items.append({e})",
    "for i in range({k}):\n        {t} = {e}", "if {a}.sum() > {k}:\n        {t} = {e}\n    else:\n        n = n + 1",
    "with torch.no_grad():\n        {t} = {e}", "n = n + {k}", "box.count += {k}", "{t} = {a} + box.count",
    "try:\n        {t} = {e}\n        [][{k}]\n    except IndexError:\n        print('index')",
    "total = int({a}.sum())",
    "box.items.append({e})", "box.items[-1:] = [{a}, {b}]", "box.table['{t}'] = {e}", "box.last = {e}",
    "{t} = {a} + (box.last if box.last is not None else {k})", "{t} = box.table.pop('{t}', {a}) * {k}",
    "{t} = box.items.pop() if box.items else {b}", "seen = {k}\n    n = n + seen", "n = n + len(box.items)",
    "made = Box()\n    made.last = {e}\n    box.made = made",
    "alias = box\n    alias.last = {a}\n    {t} = box.last + {k}",
    "def keep(t):\n        nonlocal n\n        n = box.last = n + 1\n        return t * n\n    {t} = keep({a})",
    "def inner(t):\n        return t * {k} + {b}\n    {t} = inner({e})", "graph_break()", "assert {a} is not None",
]  # fmt: skip
NAMES = ["x", "y", "z"]


class Box:
    def __init__(self) -> None:
        self.count = 0
        self.items: list[Any] = []
        self.table: dict[str, Any] = {}
        self.last: Any = None
        self.made: Any = None


@st.composite
def programs(draw: st.DrawFn) -> str:
    lines = ["def program(x, y, n):", "    global seen", "    z = x - y", "    items = []", "    total = 0"]
    for _ in range(draw(st.integers(1, 7))):
        words: dict[str, Any] = {name: draw(st.sampled_from(NAMES)) for name in "abt"}
        words["k"] = draw(st.integers(0, 3))
        words["e"] = draw(st.sampled_from(EXPRESSIONS)).format(**words)
        lines.append("    " + draw(st.sampled_from(STATEMENTS)).format(**words))
    lines.append("    return x, [y, z], items, n, total, dict(box.__dict__)")
    return "\n".join(lines) + "\n"


HELPER = """
def helper(a, b, k=1):
    if k > 2:
        print('helper', k)
    return a * k - b
"""


@settings(max_examples=120, deadline=None)
@given(programs(), st.integers(0, 3), st.booleans())
def test_programs_are_what_python_makes_of_them(text: str, n: int, requires_grad: bool) -> None:
    def graph_break() -> None:
        print("break", end="")

    namespace: dict[str, Any] = {"torch": torch, "box": Box(), "Box": Box, "seen": 0, "graph_break": graph_break}
    name = f"<program {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(HELPER + text, name, "exec"), namespace)
    program = namespace["program"]
    assert isinstance(program, types.FunctionType)

    def once(x: torch.Tensor, y: torch.Tensor, n: int) -> Any:
        namespace["box"].__init__()
        namespace["seen"] = 0
        return program(x, y, n)

    x = torch.arange(6.0).reshape(2, 3).requires_grad_(requires_grad)
    compare(once, x, torch.ones(2, 3) / 2, n, calls=2)
