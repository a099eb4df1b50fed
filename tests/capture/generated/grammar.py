"""From a string of random bytes to a program: two bytes decide one thing, and zeros decide for the simplest.

    b"…"  →  Program(text="def program(x, y, n, s, box, other, log): …", calls=(Call(...), …), backend="eager")

Hypothesis makes the bytes in the test suite; in a campaign they come from a numbered random generator.

The grammar is text: `expressions.txt` has a section per symbol with one alternative a line, `statements.txt` has
statements of several lines, a blank line between two. `$T` in an alternative is replaced by an alternative of `T`, and
so on down; as many of a section's first alternatives as its heading says are leaves, taken when the program is deep
enough. `$k` is a small number, `$t` one of the tensor variables, `$i` one of the integer ones, `$u` a number of its own
for each alternative taken. A line that is `$block` alone becomes a block of statements, `$loop` one that may also
`break` and `continue`, `$body` one of a new function, `$tail` one that may not be left by a jump.

    for i$u in $Is:            for i3 in range(n % 4):
        $loop             →        x = (y + x)

Left out: `.data` of a tensor that a backward may still read. Eager takes the new data where a formula keeps the tensor
itself, and the old where it keeps what was computed from it, which a compiled backward may compute again. Of a view
whose base was written, even eager's gradient depends on whether somebody looked at its `grad_fn` before.
"""

import dataclasses
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")

SIZE = 700
"""Bytes enough for any program; where they run out, zeros follow."""

_SYMBOL = re.compile(r"\$([a-zA-Z]+)")
_CLOSED = re.compile(r"[a-z]+|[0-9]|'[a-z]'")
_OPERANDS = {"T", "I", "Is", "B", "S"}
_TENSORS, _INTEGERS = ("x", "y", "z"), ("n", "m")


def _read_rules() -> tuple[dict[str, list[str]], dict[str, int]]:
    """The alternatives of each symbol, and how many of them are leaves."""
    rules: dict[str, list[str]] = {}
    leaves: dict[str, int] = {}
    here = Path(__file__).parent
    for section in re.split(r"^## ", (here / "expressions.txt").read_text(), flags=re.MULTILINE)[1:]:
        heading, *alternatives = section.strip().split("\n")
        name, number = heading.split(":")[0].split()
        rules[name], leaves[name] = alternatives, int(number)
    rules["statement"] = rules["line"] + (here / "statements.txt").read_text().strip().split("\n\n")
    return rules, leaves


RULES, LEAVES = _read_rules()


class Choices:
    """The bytes, taken one by one."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def below(self, count: int) -> int:
        """A number below `count` (at most 65536)."""
        taken = self._data[self._at : self._at + 2]
        self._at += 2
        return int.from_bytes(taken, "big") * count >> 16

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def chance(self, percent: int) -> bool:
        """True so often; never where the bytes have run out."""
        return self.below(100) >= 100 - percent


@dataclasses.dataclass(frozen=True)
class Call:
    """One call's arguments, as the source text that makes them, and the gradient mode it is made in."""

    n: int
    s: str
    shape: tuple[int, int]
    dtype: str
    grad: tuple[bool, bool]
    y: str
    box: str
    other: str
    log: str
    grad_mode: bool


@dataclasses.dataclass(frozen=True)
class Program:
    text: str
    calls: tuple[Call, ...]
    backend: str


class _Writer:
    """The text of one program."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.unique = 0

    def expand(self, template: str, depth: int, *, loop: bool) -> list[str]:
        """The lines of an alternative with its symbols replaced."""
        self.unique += 1
        number = str(self.unique)
        fixed = {"t": self.choices.pick(_TENSORS), "i": self.choices.pick(_INTEGERS), "u": number}
        lines: list[str] = []
        for line in template.replace("$u", number).split("\n"):
            word = line.strip()
            if word in ("$block", "$loop", "$body", "$tail"):
                inside = word == "$loop" or (loop and word == "$block")
                indent = line[: len(line) - len(word)]
                lines += [indent + each for each in self.block(depth - 1, loop=inside, tail=word == "$tail")]
            else:
                lines.append(_SYMBOL.sub(lambda match: self._symbol(match[1], depth, fixed), line))
        return lines

    def _symbol(self, name: str, depth: int, fixed: dict[str, str]) -> str:
        if name in fixed:
            return fixed[name]
        if name == "k":
            return str(self.choices.below(4))
        alternatives = RULES[name]
        leaf = depth <= 0 or self.choices.below(100) < 35
        chosen = self.choices.pick(alternatives[: LEAVES[name]] if leaf and LEAVES[name] else alternatives)
        text = self.expand(chosen, depth - 1, loop=False)[0]
        return text if _CLOSED.fullmatch(text) or name not in _OPERANDS else f"({text})"

    def block(self, depth: int, *, loop: bool, tail: bool = False) -> list[str]:
        """A few statements; the `tail` of an `except*` clause must not leave it by a jump."""
        lines: list[str] = []
        for _ in range(1 + self.choices.below(2 + (depth > 1))):
            lines += self.statement(0 if tail else depth, loop=loop)
        return lines

    def statement(self, depth: int, *, loop: bool) -> list[str]:
        if loop and self.choices.chance(6):
            return [f"if {self._symbol('B', 0, {})}:", f"    {self.choices.pick(('break', 'continue'))}"]
        if depth <= 0:
            return self.expand(self.choices.pick(RULES["line"][: LEAVES["line"]]), 1, loop=loop)
        return self.expand(self.choices.pick(RULES["statement"]), depth, loop=loop)


_HEAD = """\
def program(x, y, n, s, box, other, log):
    global counter
    z = x - y
    m, flag, cause, table, source = 2, n > 1, None, {'a': 1}, gen(2)
"""
_TAIL = "    return x, y, z, n, m, s, log, table, flag, box, other, cause\n"


def program_from(data: bytes) -> Program:
    """The program that `data` stands for."""
    choices = Choices(data)
    calls = _calls(choices)
    backend = "eager" if not choices.chance(15) else choices.pick(("aot_eager", "aot_eager", "llvm"))
    writer = _Writer(choices)
    lines: list[str] = []
    for _ in range(2 + choices.below(4)):
        lines += writer.statement(3, loop=False)
    return Program(_HEAD + "".join(f"    {line}\n" for line in lines) + _TAIL, calls, backend)


def program_of(seed: int) -> Program:
    """The program with this number."""
    return program_from(random.Random(seed).randbytes(SIZE))


def _calls(choices: Choices) -> tuple[Call, ...]:
    """Mostly calls that differ in a thing or two, so that earlier versions are found again, or miss by one guard."""
    first = Call(2, "ab", (2, 3), "float32", (False, False), "apart", "Box(1)", "Child(2)", "new", True)
    calls = [first, first] if choices.chance(25) else [first]
    for _ in range(1 + choices.below(2)):
        changes: list[dict[str, Any]] = [
            {"n": choices.below(4)},
            {"s": choices.pick(("", "a", "ab"))},
            {"shape": choices.pick(((4, 3), (2, 2), (1, 3)))},
            {"dtype": "float64"},
            {"grad": (True, choices.chance(50))},
            {"y": choices.pick(("x", "view", "row"))},
            {"box": choices.pick(("Child(1)", "Box(0, x * 2)", "Box(1, x)"))},
            {"other": choices.pick(("box", "Box(1)"))},
            {"log": choices.pick(("items", "shared"))},
            {"grad_mode": False},
        ]
        call = choices.pick(calls)
        for _ in range(1 + choices.below(3)):
            call = dataclasses.replace(call, **choices.pick(changes))
        calls.append(call)
    return tuple(calls)
