"""A mark on functions of smelt's own that do nothing compiled code could see: capture leaves calls of them out."""

from collections.abc import Callable
from typing import Any, TypeVar

UNSEEN = "_smelt_unseen"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def unseen(function: _Function) -> _Function:
    """Mark a function, which returns None."""
    setattr(function, UNSEEN, True)
    return function
