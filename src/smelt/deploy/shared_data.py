"""Weights that the state machines of a file share: what processors and GPUs read is stored once.

    data = SharedData()
    data.places(machine)   →   {0: 4096, …}: where each storage of a machine begins, in `data.weights` or `data.state`

Each machine has storages of its own. They are the same where they have the same name and hold the same bytes.
"""

from collections import Counter

import numpy

from smelt.ir.artifact.machine import Machine, RegisterKind
from smelt.ir.artifact_file.artifact import Data


class SharedData:
    """What the registers of a file hold: `weights` is never written, `state` is what it begins with."""

    def __init__(self) -> None:
        self.weights, self.state = Data(), Data()
        self._begins: dict[tuple[bool, str, int], list[int]] = {}

    def places(self, machine: Machine) -> dict[int, int]:
        """Where each storage begins, by its number."""
        places: dict[int, int] = {}
        seen: Counter[str] = Counter()
        kinds = {register.storage: register.kind for register in machine.registers}
        for number, storage in enumerate(machine.storages):
            if number in kinds:
                is_state = kinds[number] is RegisterKind.STATE
                places[number] = self._place((is_state, storage.name, seen[storage.name]), storage.data.numpy())
            seen[storage.name] += 1  # several may have one name
        return places

    def _place(self, key: tuple[bool, str, int], data: numpy.ndarray) -> int:
        held = self.state if key[0] else self.weights
        begins = self._begins.setdefault(key, [])
        for begin in begins:
            if numpy.array_equal(held.parts[begin], data):
                return begin
        begins.append(held.add(data))
        return begins[-1]
