"""Running a function through capture and plainly, and holding the two against each other."""

import contextlib
import io
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import smelt
from smelt.base.events import Event, collect
from smelt.capture import BreakRecord, CompiledRegion, GraphRecord
from smelt.ir.graph import GraphLevel, Traced, check_graph

_SMELT = os.path.dirname(smelt.__file__) + os.sep


@dataclass
class Captured:
    """A region whose graphs PyTorch runs, with a record of what was captured."""

    fullgraph: bool = False
    graphs: list[Traced] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.region = CompiledRegion(self._compile, fullgraph=self.fullgraph)

    def _compile(self, traced: Traced) -> Callable[..., Any]:
        check_graph(traced.graph, GraphLevel.TORCH)
        self.graphs.append(traced)
        return traced.to_module().forward  # not the module's __call__: global hooks must not see it

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with collect() as events:
            try:
                return self.region.call(function, *args, **kwargs)
            finally:
                self.events += events

    @property
    def breaks(self) -> list[BreakRecord]:
        return [event.subject for event in self.events if isinstance(event.subject, BreakRecord)]

    @property
    def break_codes(self) -> list[str]:
        return [record.code for record in self.breaks]

    @property
    def recompiles(self) -> list[str]:
        return [event.text for event in self.events if event.channel == "recompiles"]

    @property
    def records(self) -> list[GraphRecord]:
        return [event.subject for event in self.events if isinstance(event.subject, GraphRecord)]

    def texts(self, channel: str) -> list[str]:
        return [event.text for event in self.events if event.channel == channel]


@dataclass
class Outcome:
    """Everything a call can do that the caller can see."""

    result: Any
    error: BaseException | None
    printed: str


def error_shape(error: BaseException | None) -> Any:
    """What can be seen of an exception: type, text, lines of the traceback, and all that of what it is chained to."""
    if error is None:
        return None
    lines = [
        (frame.filename, frame.lineno, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith(_SMELT)
    ]
    chain = error_shape(error.__cause__), error_shape(error.__context__), error.__suppress_context__
    return type(error), str(error), lines, chain


def observe(call: Callable[[], Any]) -> Outcome:
    """Run and note result, exception and printed text."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            return Outcome(call(), None, text.getvalue())
        except Exception as error:
            return Outcome(None, error, text.getvalue())


def assert_alike(mine: Any, eager: Any) -> None:
    """The same types and values all the way down."""
    assert type(mine) is type(eager), f"{type(mine)} is not {type(eager)}"
    if isinstance(eager, torch.Tensor):
        assert mine.requires_grad == eager.requires_grad
        assert mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager, equal_nan=True)
    elif isinstance(eager, dict):
        assert list(mine) == list(eager)
        for key in eager:
            assert_alike(mine[key], eager[key])
    elif isinstance(eager, list | tuple):
        assert len(mine) == len(eager)
        for one, other in zip(mine, eager, strict=True):
            assert_alike(one, other)
    elif hasattr(eager, "__dict__") and not callable(eager):
        assert_alike(vars(mine), vars(eager))
    elif not callable(eager):
        assert mine == eager or (mine != mine and eager != eager)


def compare(
    function: Callable[..., Any], *args: Any, runner: Captured | None = None, calls: int = 3, **kwargs: Any
) -> Captured:
    """`calls` captured calls against as many plain ones: same results, exceptions, printed text, written arguments."""
    runner = runner or Captured()
    for _ in range(calls):
        eager_args, eager_kwargs = _copy(args), _copy(kwargs)
        my_args, my_kwargs = _copy(args), _copy(kwargs)
        torch.manual_seed(0)
        eager = observe(lambda: function(*eager_args, **eager_kwargs))  # noqa: B023
        torch.manual_seed(0)
        mine = observe(lambda: runner(function, *my_args, **my_kwargs))  # noqa: B023
        assert mine.printed == eager.printed
        if (mine.error is None) != (eager.error is None):
            raise AssertionError(f"raised {mine.error!r}, Python raises {eager.error!r}") from (
                mine.error or eager.error
            )
        if eager.error is not None:
            ours, theirs = error_shape(mine.error), error_shape(eager.error)
            assert ours == theirs, f"{ours}\n{theirs}"
        assert_alike(mine.result, eager.result)
        assert_alike(my_args, eager_args)
    return runner


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(_copy(item) for item in value)
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    return value
