"""Which value of a machine a tensor or a number of an explored state is."""

from typing import Any

import torch

from smelt.capture.explore.abstraction import STAND_IN
from smelt.capture.explore.ssa import SsaValue
from smelt.capture.model.open_numbers import OpenNumber
from smelt.ir.artifact.machine import RegisterKind


class Values:
    """Which value a tensor of a state stands for."""

    def __init__(self, explorer: Any, values: dict[int, SsaValue]) -> None:
        self._explorer, self._values = explorer, values
        self._made: list[torch.Tensor] = []

    def now(self, values: dict[int, SsaValue]) -> None:
        """What the stand-ins are after the graph."""
        self._values = values

    def add(self, tensor: torch.Tensor, value: SsaValue) -> None:
        """An output of the graph, which are added in their order."""
        self._values[id(tensor)] = value
        self._made.append(tensor)

    def place_of(self, tensor: torch.Tensor) -> int | None:
        """Which output of the graph it is."""
        return next((place for place, each in enumerate(self._made) if each is tensor), None)

    def __call__(self, real: Any) -> SsaValue:
        """The value of a tensor, an open number, or a number that becomes one."""
        if isinstance(real, OpenNumber):
            real = real.tensor
        if not isinstance(real, torch.Tensor):
            constant: SsaValue = self._explorer.constant(real)
            return constant
        value = self._values.get(id(real))
        if value is not None:
            return value
        if STAND_IN in real.__dict__:
            reason = "an object that export cannot look into holds a tensor over a branch"
            hint = "keep tensors in variables, lists, tuples, dicts and plain objects"
            raise self._explorer.error(reason, hint)
        known: dict[int, SsaValue] = self._explorer.given
        if id(real) not in known:
            name = self._explorer.arguments.name_of(real)
            sizes = tuple(real.shape)
            known[id(real)] = SsaValue(RegisterKind.CONSTANT, name, real.dtype, sizes, real.device, real)
        return known[id(real)]
