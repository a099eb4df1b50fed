"""What a capture leaves behind: guards, a compiled graph, and how to go on once it has run.

Return   the outermost frame's result, rebuilt from inputs and outputs
Stop     the frames as they stood when the graph ended; `eager` says whether CPython finishes the innermost one or one
         instruction is executed and capture begins again
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from smelt.base.errors import GraphBreakError
from smelt.capture.breaks import BreakRecord
from smelt.capture.bytecode import CodeInfo
from smelt.capture.rebuild import Recipe
from smelt.capture.state import LiveFrame
from smelt.ir.graph import Traced

GraphRun = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One captured graph, for people and tools."""

    traced: Traced
    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Computation:
    """The graph's part of a plan: `run` is None if there was nothing to compute."""

    run: GraphRun | None
    arguments: tuple[int, ...]
    collected: int
    recipe: Recipe
    grad_mode: bool | None

    def registers(self, collected: tuple[Any, ...]) -> list[Any]:
        """Run the graph on the collected inputs, then rebuild objects."""
        outputs: Any = ()
        if self.run is not None:
            outputs = self.run(*[collected[number] for number in self.arguments])
        if self.grad_mode is not None:
            torch._C._set_grad_enabled(self.grad_mode)
        return self.recipe.registers(collected, outputs)


@dataclass(frozen=True, slots=True)
class Return:
    """The frame's result is register `result`."""

    computation: Computation
    result: int

    def finish(self, collected: tuple[Any, ...]) -> Any:
        return self.computation.registers(collected)[self.result]


@dataclass(frozen=True, slots=True)
class FrameRecipe:
    """Which registers hold one frame's function, slots and stack."""

    info: CodeInfo
    index: int
    discard: bool
    function: int
    slots: tuple[int, ...]
    stack: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """The graph ended at the innermost frame's current instruction."""

    computation: Computation
    frames: tuple[FrameRecipe, ...]
    eager: bool
    record: BreakRecord
    forbidden: GraphBreakError | None = None
    """Raised if the instruction does not raise by itself: fullgraph=True and an operation that seemed to fail."""

    def state(self, collected: tuple[Any, ...]) -> list[LiveFrame]:
        """Run the graph and stand the frames up again."""
        registers = self.computation.registers(collected)
        return [
            LiveFrame(
                registers[frame.function],
                frame.info,
                frame.index,
                [registers[number] for number in frame.slots],
                [registers[number] for number in frame.stack],
                frame.discard,
            )
            for frame in self.frames
        ]


Plan = Return | Stop


def quick_run(plan: Return) -> Callable[..., Any]:
    """`plan.finish` as a function of the collected inputs, with nothing in it that this plan does not need."""
    computation, result = plan.computation, plan.result
    run, recipe = computation.run, computation.recipe
    direct = computation.arguments == tuple(range(computation.collected))
    first_output = len(recipe.constants) + computation.collected
    if run is None or not direct or computation.grad_mode is not None:
        return lambda *collected: plan.finish(collected)
    if not recipe.steps and result >= first_output:
        which = result - first_output
        return lambda *collected: run(*collected)[which]
    constants, steps = recipe.constants, recipe.steps
    if len(steps) == 1 and result == len(constants) + computation.collected + len(steps[0][1]):
        function, operands = steps[0]
        if operands == tuple(range(first_output, first_output + len(operands))):
            return lambda *collected: function(*run(*collected))
    return lambda *collected: plan.finish(collected)
