"""Guards as sentences, the ones a user can do something about first.

    ("tensor", Tensor, float32, cpu, (32, None), …) of x   →   `x` must stay float32 of shape (32, any), on cpu

What a capture relied on is a tree of checks; most of it is the machinery of modules (no hooks, methods as they were)
and is summed up in one sentence.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.guards.tree import UNDERNEATH

_CHILD = re.compile(r"\._modules\['(?:(\d+)|(\w+))'\]")  # of a container: people write layers[0]
_STATES = {True: "on", False: "off"}
_SETTINGS = {  # of the process, by the text of the guard: what must stay, in words
    "grad mode": "gradient recording",
    "inference mode": "inference mode",
    "autocast": "autocast",
    "default dtype": "the default dtype",
    "deterministic algorithms": "deterministic algorithms",
}


@dataclass(frozen=True, slots=True)
class GuardWords:
    """What must stay as it is: arguments and attributes one by one, the process's settings, and the rest counted."""

    values: tuple[str, ...]
    settings: tuple[str, ...]
    machinery: int  # checks of modules, classes, globals and hooks

    def lines(self) -> list[str]:
        lines = [*self.values, *self.settings]
        if self.machinery:
            lines.append(f"modules, classes, hooks and globals must stay as they are ({self.machinery} checks)")
        return lines


def in_words(roots: Sequence[Any], translated: Callable[[str], str] = str) -> GuardWords:
    """The sentences of one capture's guards; `translated` puts the user's names into a text."""
    values: list[str] = []
    settings: list[str] = []
    machinery = 0
    for text, check in _checks([root for root in roots if root[4] != UNDERNEATH]):
        if check[0] == "calls":
            settings += _setting(text, check)
            continue
        if check[0] == "replaced":
            settings += [f"{name} must stay replaced" for name in sorted(check[1])]
            continue
        sentence = _sentence(translated(_CHILD.sub(_as_written, text)), check)
        if sentence is None:
            machinery += 1
        else:
            values.append(sentence)
    return GuardWords(tuple(dict.fromkeys(values)), tuple(settings), machinery)


def _as_written(child: re.Match[str]) -> str:
    return f"[{child[1]}]" if child[1] is not None else f".{child[2]}"


def _checks(nodes: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for _, checks, children, _, text in nodes:
        for check in checks:
            yield text, check
        yield from _checks(children)


def _setting(text: str, check: tuple[Any, ...]) -> list[str]:
    expected = check[2]
    if text not in _SETTINGS:
        return []
    state = _STATES[expected] if isinstance(expected, bool) else str(expected)
    return [f"{_SETTINGS[text]} must stay {state}"]


def _sentence(text: str, check: tuple[Any, ...]) -> str | None:
    """None for what belongs to the machinery."""
    kind, *rest = check
    if kind == "tensor":
        return f"`{text}` must stay {_tensor(*rest)}"
    if text.startswith(("globals of ", "_global_")) or "__" in text or "._" in text or "hooks" in text:
        return None
    if kind == "equals":
        return f"`{text}` must stay {rest[0]!r}"
    if kind == "length":
        return f"`{text}` must keep {rest[0]} items"
    if kind == "type" and rest[0] in (list, tuple, dict, set, int, float, str, bool, type(None)):
        return f"`{text}` must stay a {rest[0].__name__}"
    return None


def _tensor(cls: type, dtype: torch.dtype, device: Any, shape: Any, stride: Any, requires_grad: Any) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    comma = "," if len(shape) == 1 else ""
    gradient = ", with gradients" if requires_grad else ""
    order = "" if _is_row_major(shape, stride) else f", strides {tuple('any' if s is None else s for s in stride)}"
    return f"{str(dtype).removeprefix('torch.')} of shape ({sizes}{comma}){order}, on {device}{gradient}"


def _is_row_major(shape: Sequence[int | None], stride: Sequence[int | None]) -> bool:
    expected: int | None = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if step is not None and expected is not None and size != 1 and step != expected:
            return False
        expected = expected * size if expected is not None and size is not None else None
    return True
