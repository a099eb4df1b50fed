"""What a capture leaves behind: guards, a compiled graph, and how to go on once it has run.

Return   the outermost frame's result, rebuilt from inputs and outputs
Stop     the frames as they stood when the graph ended; `eager` says whether CPython finishes the innermost one or one
         instruction is executed and capture begins again
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch

from smelt import _native
from smelt.base.errors import GraphBreakError
from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.bytecode import CodeInfo
from smelt.capture.model.records import BreakRecord
from smelt.capture.model.source import Source
from smelt.capture.model.state import LiveFrame
from smelt.capture.replay.reconstruct import Recipe
from smelt.ir.nodes.ambient import Ambient, forget_casts

GraphRun = Callable[..., Any]


class RunError(Exception):
    """The run of a graph raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class NothingWritten(RunError):
    """A graph that writes its inputs raised `error` before it had written any."""


class Communicated(RunError):
    """A graph raised `error` after it had started a collective, or waited for one: other processes have noticed."""


class GraphFailed(RunError):
    """The compiled graph raised `error`. Python may run the state again, unless the graph is `irreversible`: it has
    written an input, or started a collective. Then its error leaves the call."""

    def __init__(self, error: Exception, irreversible: bool) -> None:
        super().__init__(error)
        self.irreversible = irreversible


@dataclass(frozen=True, slots=True)
class Preallocated:
    """A tensor that the program makes, the graph writes and an object from outside keeps, as optimizers keep their
    state: it is made before the graph, which is given it. So is it when the program finds it the next time."""

    function: Callable[..., torch.Tensor]
    args: tuple[Any, ...]  # a source stands for what was collected from it
    kwargs: dict[str, Any]

    def make(self, collected: tuple[Any, ...]) -> torch.Tensor:
        def given(argument: Any) -> Any:
            return collected[argument.index] if isinstance(argument, Source) else argument

        return self.function(*map(given, self.args), **{name: given(each) for name, each in self.kwargs.items()})


@dataclass(frozen=True, slots=True)
class Computation:
    """The graph's part of a plan: `run` is None if there was nothing to compute.

    The state of the process is `entry` before and after the graph; the program left it as `final`, if that differs.
    """

    run: GraphRun | None
    arguments: tuple[int, ...]
    collected: int
    recipe: Recipe
    entry: Ambient
    final: Ambient | None
    writes: bool
    cleared_grads: tuple[Any, ...] = ()
    """Leaves whose gradients are dropped before the graph runs."""
    preallocated: tuple[Preallocated, ...] = ()
    """What comes behind the collected, which counts them too."""

    def outputs(self, collected: tuple[Any, ...]) -> Any:
        """Run the graph on the collected inputs."""
        if self.run is None:
            return ()
        for leaf in self.cleared_grads:
            leaf.grad = None
        try:
            return _native.restoring(self.restore_entry, self.run, *[collected[number] for number in self.arguments])
        except Exception as error:
            failure = self.failed(error)
        raise failure

    def restore_entry(self) -> None:
        """Put back what the graph may have changed when it raised."""
        self.entry.impose()
        if not self.entry.nesting:
            forget_casts()  # it may have raised inside an autocast block, and weights may change before the next

    def failed(self, error: Exception) -> GraphFailed:
        """The graph raised. Who goes on from there leaves the handler first: nothing of this is for the program."""
        if isinstance(error, Communicated):
            return GraphFailed(error.error.with_traceback(None), True)
        if self.writes and not isinstance(error, NothingWritten):
            return GraphFailed(error, True)
        return GraphFailed((error.error if isinstance(error, NothingWritten) else error).with_traceback(None), False)

    def rebuilt(self, collected: tuple[Any, ...], then: Callable[[list[Any]], Any]) -> Any:
        """Run the graph and rebuild objects; `then`, given the registers, has the program where it stands after it."""
        if self.preallocated:
            collected = (*collected, *[each.make(collected) for each in self.preallocated])
        outputs = self.outputs(collected)
        if self.final is None:
            return then(self.recipe.registers(collected, outputs))
        return _native.restoring(self._restore_final, self._in_final_ambient, collected, outputs, then)

    def _in_final_ambient(self, collected: tuple[Any, ...], outputs: Any, then: Callable[[list[Any]], Any]) -> Any:
        assert self.final is not None
        self.final.switch_from(self.entry)
        return then(self.recipe.registers(collected, outputs))

    def _restore_final(self) -> None:
        """The program did not get to where the state is `final`."""
        assert self.final is not None
        self.entry.switch_from(self.final)


@dataclass(frozen=True, slots=True)
class Return:
    """The frame's result is register `result`."""

    computation: Computation
    result: int

    def finish(self, collected: tuple[Any, ...]) -> Any:
        return self.computation.rebuilt(collected, operator.itemgetter(self.result))


@dataclass(frozen=True, slots=True)
class FrameRecipe:
    """Which registers hold one frame's function, slots, stack and, if it handles one, exception."""

    info: CodeInfo
    index: int
    discard: bool
    function: int
    slots: tuple[int, ...]
    stack: tuple[int, ...]
    handled: int | None = None

    def materialize(self, registers: list[Any]) -> LiveFrame:
        slots = [registers[number] for number in self.slots]
        stack = [registers[number] for number in self.stack]
        handled = None if self.handled is None else registers[self.handled]
        return LiveFrame(registers[self.function], self.info, self.index, slots, stack, self.discard, handled)


@dataclass(frozen=True, slots=True)
class Stop:
    """The graph ended at the innermost frame's current instruction."""

    computation: Computation
    frames: tuple[FrameRecipe, ...]
    eager: bool
    record: BreakRecord
    forbidden: GraphBreakError | None = None
    """Raised if the instruction does not raise by itself: fullgraph=True and an operation that seemed to fail."""
    bound: tuple[int, ...] = ()
    """Those of the collected that variables of the program hold: Python keeps them, also where nothing reads them."""

    def materialize(self, collected: tuple[Any, ...], frames: list[LiveFrame]) -> None:
        """Run the graph and have the frames as they stood, in the place of what is in the list."""

        def take(registers: list[Any]) -> None:
            frames[:] = [frame.materialize(registers) for frame in self.frames]

        self.computation.rebuilt(collected, take)


Plan = Return | Stop


class Owner(Protocol):
    """Whom a plan runs for: the engine, as far as going on after a break needs it."""

    fullgraph: bool
    native: _native.Region

    def plan_for(self, frames: list[LiveFrame]) -> tuple[Plan, tuple[Any, ...]] | None: ...

    def plan_for_sizes(
        self, frames: list[LiveFrame], plan: Plan, place: int, error: BaseException
    ) -> tuple[Plan, tuple[Any, ...]] | None: ...


@dataclass(frozen=True, slots=True)
class EntryState:
    """The way back to the state a plan starts from, for what guards cannot tell beforehand.

    `relations` are pairs of collected tensors that must (or must not) be one object or, if None, no views of one;
    `computed` are functions of collected numbers that must not raise; `frames` find their contents among the collected
    values, with `NULL` behind the last.
    """

    relations: tuple[tuple[int, int, bool | None], ...]
    computed: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...]
    frames: tuple[FrameRecipe, ...]

    @property
    def open(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.relations or self.computed)

    def holds(self, collected: tuple[Any, ...]) -> bool:
        try:
            for function, places in self.computed:
                function(*[collected[place] for place in places])
        except Exception:
            return False
        return all(alias_holds(collected[one], collected[other], same) for one, other, same in self.relations)

    def checker(self) -> Callable[[tuple[Any, ...]], bool]:
        """`holds`, for every call: that objects are distinct, as a model's layers are, or no views of one tensor, takes
        linear time."""
        distinct, apart = (
            sorted({place for *pair, same in self.relations if same is relation for place in pair})
            for relation in (False, None)
        )
        others = replace(self, relations=tuple(each for each in self.relations if each[2] is True))
        if len(distinct) < 2 and len(apart) < 2:
            return self.holds
        chosen = operator.itemgetter(*distinct) if distinct else lambda collected: ()
        count, has_others = len(distinct), not others.open

        def holds(collected: tuple[Any, ...]) -> bool:
            if len(set(map(id, chosen(collected)))) < count:
                return self.holds(collected)
            bases = {id(tensor if (base := tensor._base) is None else base) for tensor in [collected[n] for n in apart]}
            if len(bases) < len(apart):
                return self.holds(collected)
            return not has_others or others.holds(collected)

        return holds

    def state(self, collected: tuple[Any, ...]) -> list[LiveFrame]:
        registers = [*collected, _native.NULL]
        return [frame.materialize(registers) for frame in self.frames]


def alias_holds(one: Any, other: Any, same: bool | None) -> bool:
    """Whether a relation holds, see `EntryState`."""
    return have_distinct_bases(one, other) if same is None else (one is other) == same


def have_distinct_bases(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether neither is a view of the other, nor both of a third: by views autograd tells of writes."""
    return (one if one._base is None else one._base) is not (other if other._base is None else other._base)


def what_is_returned(plan: Return) -> int | Callable[..., Any] | None:
    """Which of the graph's outputs, or what makes the result of them all; None if more than that is to be done."""
    computation, recipe = plan.computation, plan.computation.recipe
    if computation.run is None or computation.final is not None or recipe.writes:
        return None
    first_output = len(recipe.constants) + computation.collected
    if not recipe.steps and plan.result >= first_output:
        return plan.result - first_output
    if len(recipe.steps) == 1:
        function, operands = recipe.steps[0]
        end = first_output + len(operands)
        if operands == tuple(range(first_output, end)) and plan.result == end:  # no output is left out
            return function
    return None
