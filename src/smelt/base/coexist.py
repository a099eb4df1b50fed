"""Coexisting with `torch.compile` in one process: what it must not trace.

    @opaque
    def compiled(*args, **kwargs): …

`torch.compile` follows every function it meets, and has a frame hook of its own for what it cannot follow. A function
compiled by smelt is not for it to follow: it is called as it is, and neither it nor what it calls is captured a second
time. Said through the interface that the hook itself has; nothing of the compiler behind it is imported.
"""

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def leave_alone(function: F) -> F:
    """Frames of this function, or of a class's methods, and of all that they call, are not for `torch.compile`.

    The mark is on the code, so functions made by the same `def` share it; functions written inside are marked too.
    """
    interface: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    actions = getattr(interface, "_FrameAction", None)
    if actions is None or not hasattr(interface, "set_code_exec_strategy"):
        return function
    members = vars(function).values() if isinstance(function, type) else [function]
    strategy = interface._FrameExecStrategy(actions.SKIP, actions.SKIP)
    for member in members:
        member = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(member, FunctionType):
            for code in _codes_in(member.__code__):
                interface.set_code_exec_strategy(code, strategy)
    return function


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def opaque(function: F) -> F:
    """The function, which `torch.compile` is to call and not to follow."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "it is compiled by smelt"  # type: ignore[attr-defined]
    return leave_alone(function)


def is_allowed_in_graph(function: object) -> bool:
    """Whether the program marked a function by `torch.compiler.allow_in_graph`: then the module that notes it is
    loaded."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    noted = (getattr(rules, name, None) for name in ("_allowed_callable_ids", "_nonstrict_trace_callable_ids"))
    return any(id(function) in (getattr(each, "function_ids", None) or ()) for each in noted)
