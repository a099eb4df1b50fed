"""What the records of operators say of results and effects. A family of records is loaded when one is asked for.

    facts_of("nll_loss_forward.default")   →   Facts(shape=…, raises=True)

Records are in `smelt.ops`, which names its families here (`FAMILIES`). They fill the table as they are imported.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

FAMILIES: list[str] = []  # names of modules


class Facts(NamedTuple):
    shape: Callable[..., Any] | None = None
    """The specs of results on the CPU, or `NotImplemented` to ask PyTorch's meta kernel."""
    raises: bool = False
    """Whether it raises for some values of its tensors."""


_facts: dict[str, Facts] = {}
_loaded = 0


def add(operator: Any, shape: Callable[..., Any] | None, raises: bool) -> None:
    """Note what a record says of an operator. All that it does not say is as PyTorch says."""
    if shape is not None or raises:
        _facts[operator.__name__] = Facts(shape, raises)


def facts_of(name: str) -> Facts:
    """By a name like "mse_loss.default"."""
    global _loaded
    while name not in _facts and _loaded < len(FAMILIES):
        importlib.import_module(FAMILIES[_loaded])
        _loaded += 1
    return _facts.get(name, _NOTHING)


def all_facts() -> dict[str, Facts]:
    """What all records say, by operator."""
    facts_of("")
    return dict(_facts)


_NOTHING = Facts()
