"""The public functions where this PyTorch lacks internals that the compiler is built on: everything runs in eager.

`smelt/__init__.py` takes them instead of `smelt.api` when the compiler cannot be imported with a PyTorch that smelt is
not tested with. It has warned by then (SM080).
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from smelt.base.errors import SmeltError


def compile(model: Callable[..., Any] | None = None, *, options: Mapping[str, Any] | None = None, **_: Any) -> Any:
    """The unchanged model; an error under `options={"fallback": False}`."""
    if not (options or {}).get("fallback", True):
        raise SmeltError("SM080", "nothing can be compiled with this PyTorch", hint="smelt doctor names the versions")
    return (lambda function: function) if model is None else model


def disable(function: Callable[..., Any] | None = None) -> Any:
    """The function as it is, or a block that changes nothing."""
    return contextlib.nullcontext() if function is None else function


def reset() -> None:
    """Nothing was compiled."""


def is_compiling() -> bool:
    """Never."""
    return False


def graph_break() -> None:
    """There are no graphs."""


def mark_dynamic(tensor: Any, dim: Any, *, min: int | None = None, max: int | None = None) -> None:
    """Nothing is compiled for any size."""


def unavailable(name: str) -> Callable[..., Any]:
    """What stands for a function that cannot work without the compiler."""

    def raise_unavailable(*args: Any, **kwargs: Any) -> Any:
        raise SmeltError(
            "SM080", f"smelt.{name} does not work with this PyTorch", hint="smelt doctor names the versions"
        )

    return raise_unavailable
