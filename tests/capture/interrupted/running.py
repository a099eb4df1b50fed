"""One injection: the exception is raised at a place of a world, then everything is looked at."""

import gc
import sys
import warnings
from collections.abc import Collection
from typing import Any

import torch

import smelt
from smelt.base.options import config
from tests.capture.interrupted.locks import forget_locks
from tests.capture.interrupted.points import Place, injected, visited
from tests.capture.interrupted.snapshot import differences, quick, snapshot
from tests.capture.interrupted.worlds import WORLDS, World


class Interruption(BaseException):
    """No exception that anybody handles."""


_ERRORS = (KeyboardInterrupt, Interruption)


def _plainly(function: Any) -> Any:
    return function


class Trial:
    """All places of one world; the same ones, in the same order, in any process."""

    def __init__(self, name: str, only: Collection[str] | None = None) -> None:
        self.only = only
        config.suppress_errors = False
        warnings.simplefilter("ignore")
        self.kind: type[World] = WORLDS[name]
        self._unheeded: list[Any] = []
        sys.unraisablehook = self._unheeded.append
        self._goes_on(self._fresh())
        for _ in range(2):  # what is loaded or found out once for all is not to be seen
            self._fresh_run(visited_places := [])
        self.places: list[Place] = visited_places
        self.locks = forget_locks()

    def _fresh_run(self, places: list[Place]) -> None:
        world = self._fresh()
        with world.around():
            self.before = world.state()
            places += visited(world.step, quick if self.only is None else None, self.only)
            self.after = world.state()

    def _fresh(self) -> World:
        smelt.reset()
        return self.kind(smelt.compile)

    def failure(self, number: int) -> str | None:
        """What is wrong once an exception was raised at a place; None if nothing is."""
        world = self._fresh()
        self._unheeded.clear()
        error = _ERRORS[number % len(_ERRORS)]("here")
        with world.around():
            before = snapshot()
            arrived: BaseException | None = None
            try:
                with injected(self.places[number], error) as reached:
                    world.step()
            except BaseException as raised:
                arrived = raised
            arrived_as = None if arrived is None else type(arrived)
            del arrived
            wrong = differences(before, snapshot())
            if reached and arrived_as is not type(error) and not self._unheeded:
                wrong.append(f"{type(error).__name__} arrived as {arrived_as}")
            del error
            wrong += self._half_written(world.state())
            wrong += self._goes_on(world) if not wrong else []
            wrong += differences(before, snapshot()) if not wrong else []
        forget_locks(self.locks)
        return "; ".join(wrong) or None

    def _half_written(self, state: dict[str, Any]) -> list[str]:
        """Objects that are neither as before nor as after."""
        return [
            f"{name} is neither as it was nor as it should become: {state[name]}"
            for name in state
            if not _same(state[name], self.before[name]) and not _same(state[name], self.after[name])
        ]

    def _goes_on(self, world: World) -> list[str]:
        """Run the program again, compiled and in eager, and eager code besides."""
        twin = self.kind(_plainly)
        twin.take(world.state())
        found = []
        for each in (world, twin):
            torch.manual_seed(5)
            if each is twin:
                with twin.around():
                    found.append(each.step())
            else:
                found.append(each.step())
        wrong = [] if _same(found[0], found[1]) else [f"run again it yields {found[0]} for {found[1]}"]
        if not _same(world.state(), twin.state()):
            wrong.append("run again it writes other values")
        x = torch.ones(3, requires_grad=not torch.is_inference_mode_enabled())
        if (x * 2).sum().item() != 6:
            wrong.append("eager code is wrong")
        gc.collect(0)
        return wrong


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        if not one.is_floating_point():
            return torch.equal(one, other)
        bound = 1e-2 if one.dtype is torch.bfloat16 else 1e-5
        return torch.allclose(one, other, rtol=bound, atol=bound, equal_nan=True)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
