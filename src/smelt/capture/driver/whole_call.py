"""Capturing a call as a whole without making it: `described_call(function, args, kwargs)` → `DescribedCall`.

The call is interpreted from its first instruction to its return, as one graph; nothing of the program runs. What cannot
be captured raises `GraphBreakError` with the user's line, or `SkipFrame`.
"""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from smelt import _native
from smelt.capture.driver.capture_frame import capture
from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.model.bytecode import decode
from smelt.capture.model.state import LiveFrame
from smelt.capture.replay.described import DescribedCall
from smelt.capture.replay.plan import Plan, Stop
from smelt.ir.graph import Traced
from smelt.torch_abi.tensor_layout import install_tensor_layout

TARGET, ARGS, KWARGS = range(3)
"""The slots of the frame that makes the call: what paths of `Given` begin with."""


def make_call(target: Any, args: Any, kwargs: Any) -> Any:
    """The frame that is captured."""
    return target(*args, **kwargs)


def _never_run(traced: Traced) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        raise AssertionError("a call that is only described was made")

    return run


def described_call(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    history: History | None = None,
) -> DescribedCall:
    """`function(*args, **kwargs)` as data. `history` says which sizes and numbers are symbols."""
    install_tensor_layout()
    calls: list[DescribedCall] = []
    plans: list[Plan] = []
    assert isinstance(make_call, FunctionType)
    frame = LiveFrame(make_call, decode(make_call.__code__), 0, [function, tuple(args), dict(kwargs or {})], [])
    _native.preserving_state(_captured, [frame], history or History(), calls.append, plans.append)
    if calls:
        return calls[0]
    (plan,) = plans
    assert isinstance(plan, Stop)
    raise plan.forbidden or SkipFrame(plan.record.reason)  # it raises, in Python too


def _captured(
    frames: list[LiveFrame],
    history: History,
    observe: Callable[[DescribedCall], None],
    keep: Callable[[Plan], None],
) -> None:
    keep(capture(frames, _never_run, fullgraph=True, dynamic=None, history=history, observe=observe).plan)
