"""From a number to a story: a function that reads parts of the world, and what happens between its calls.

    story_of(7)  →  Story(text="def program(x): …", steps=("", "Leaf.__bases__ = (Root,)", "", …))

A step is a change of the world, as a statement, or the empty text: a call. `reads.txt` has the expressions of which
programs are made, `changes.txt` the statements; `$C` in a line stands for a class, `$o` for an object (`SYMBOLS`).
Most changes are about what the program names. Changes are repeated and turned back: two that name the same target
undo each other, so a world comes to be what it was before.
"""

import ast
import dataclasses
import random
import re
from pathlib import Path

_HERE = Path(__file__).parent
READS = (_HERE / "reads.txt").read_text().splitlines()
CHANGES = (_HERE / "changes.txt").read_text().splitlines()
SYMBOLS = {
    "C": "Root Mixin Middle Leaf Stranger Abstract Nominal Hooked Named Speaks Talker Quiet Typed Wanted Table One Two "
    "Proxy Lazy Slotted Sized Callable Number Owner Point Pair Color Net Fault Parametrized int",
    "o": "root middle leaf stranger nominal talker quiet typed wanted table one proxy lazy watched slotted sized "
    "caller number managed owner point pair dictionary net space member current scale numbers mapping inner None",
    "M": "Meta Asking Operated Same",
    "D": "Data Getting Deleting Waiting",
    "B": "Abstract Nominal Hooked Speaks",
    "R": "Sized Iterable Mapping Sequence Hashable Callable Container",
    "A": "collections.abc.Sized collections.abc.Iterable collections.abc.Mapping collections.abc.Sequence "
    "collections.abc.Hashable collections.abc.Callable Abstract Hooked Speaks Named",
    "b": "leaf stranger sized quiet talker numbers mapping number pair lazy dictionary caller",
    "t": "x plain_tensor parameter buffer",
    "a": "k size area name extra value mark speak quack level tag items data getting deleting waiting x once weight",
    "d": "__call__ __len__ __bool__ __eq__ __hash__ __contains__ __getitem__ __iter__ __add__ __radd__ __lt__ __str__ "
    "__repr__ __getattr__ __getattribute__ __instancecheck__ __subclasscheck__ __class_getitem__ __init__ __new__ "
    "__enter__ __exit__ __index__ __setattr__ __match_args__ __class__ __next__ __missing__ __subclasshook__",
    "g": "__get__ __set__ __delete__ __set_name__",
    "F": "yes no three noting raising nameless",
    "v": "1 2 2.5 'a' None (1,2) [1] Leaf three torch.ones(2) True",
    "k": "0 1 2 3 4",
}
_WORD = re.compile(r"[A-Za-z_]\w*")
_SYMBOL = re.compile(r"\$([a-zA-Z])")
ROUNDS = 8


@dataclasses.dataclass(frozen=True)
class Story:
    """A program and what happens to it; `backend` is what runs its graphs."""

    text: str
    steps: tuple[str, ...]
    backend: str = "eager"


def story_of(seed: int) -> Story:
    """The story of that number, always the same."""
    random_ = random.Random(seed)
    reads = [_expanded(random_, random_.choice(READS), set()) for _ in range(random_.randint(1, 5))]
    text = "\n".join(["def program(x):", "    out = []", *_lines(random_, reads), "    return x, out", ""])
    names = _names(text)
    steps = [""] * random_.randint(1, 3)
    made: list[str] = []
    for _ in range(ROUNDS):
        for _ in range(random_.choice((1, 1, 1, 2))):
            change = random_.choice(made) if made and random_.random() < 0.3 else _change(random_, names, made)
            made.append(change)
            steps.append(change)
        steps += [""] * random_.choice((1, 1, 2, 3))
    return Story(text, tuple(steps))


def _lines(random_: random.Random, reads: list[str]) -> list[str]:
    """The body: each read's answer is kept, or decides what is computed."""
    lines = []
    for number, read in enumerate(reads, 2):
        use = random_.randrange(4)
        if use == 0:
            lines.append(f"    x = x * {number} if ({read}) else x - {number}")
        elif use == 1:
            lines.append(f"    out.append({read})")
        else:
            lines += ["    try:", f"        out.append({read})", "    except Exception as error:"]
            lines.append("        out.append((type_before(error), str(error)))")
        if random_.random() < 0.5:
            lines.append(f"    x = x + {number}")
    return lines


def _names(text: str) -> set[str]:
    """The names of a program, and those of the classes of what it names."""
    named = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return named | {each.capitalize() for each in named}


def _change(random_: random.Random, names: set[str], made: list[str]) -> str:
    """A change, most often of what the program names or of what was changed before."""
    targets = names | {word for change in made for word in _WORD.findall(change)[:1]}
    for _ in range(60):
        change = _expanded(random_, random_.choice(CHANGES), targets)
        words = _WORD.findall(change)
        first = words[1] if words[0] == "del" else words[0]
        if first in targets or random_.random() < 0.02:
            break
    return change


def _expanded(random_: random.Random, line: str, preferred: set[str]) -> str:
    def choose(match: re.Match[str]) -> str:
        choices = SYMBOLS[match[1]].split()
        liked = [each for each in choices if each in preferred]
        return random_.choice(liked if liked and random_.random() < 0.7 else choices)

    return _SYMBOL.sub(choose, line)
