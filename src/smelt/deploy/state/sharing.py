"""State and weights of the entry points of one file: what one of them writes is state of all.

    prefill   cache: STATE      weight: CONSTANT         one list of storages, and the same
    decode    cache: CONSTANT   weight: CONSTANT    →    registers of STATE in every machine: cache

Storages are the same if they are of the same memory in Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.deploy.errors import ExportError
from smelt.deploy.state.homes import Home, Homes
from smelt.ir.artifact.check import check_machine
from smelt.ir.artifact.machine import Machine, Register, RegisterKind, Storage

Copies = dict[tuple[int, int, int], tuple[torch.UntypedStorage, torch.Tensor]]
"""Bytes of memory in Python by its key, first and last byte; the memory is kept, for its key to stay its own."""


@dataclass(slots=True, eq=False)
class EntryState:
    """What the export of one entry point tells of Python's objects, and what it shares with the others.

    `read`, `written`: homes of Python values, whose objects `homes` keeps. `relied`: tensors whose values decided what
    it does. `generator`, `copies`: shared by all."""

    name: str = ""
    generator: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    copies: Copies = field(default_factory=dict)
    homes: list[Homes] = field(default_factory=list)
    read: set[Home] = field(default_factory=set)
    written: dict[Home, str] = field(default_factory=dict)
    relied: list[tuple[torch.Tensor, str]] = field(default_factory=list)
    explores: bool = False  # it has control flow: what it reads is not known

    def beside(self, name: str) -> "EntryState":
        """Of another entry point of the same file."""
        return EntryState(name, self.generator, self.copies)


def with_one_state(machines: Sequence[Machine], states: Sequence[EntryState]) -> list[Machine]:
    """The machines of a file's entry points, with storages and registers of state in common."""
    _refuse_numbers(states)
    merging = _Merging(machines)
    for state in states:
        for tensor, text in state.relied:
            if merging.is_state(tensor):
                raise ExportError(
                    f"what {state.name} does depends on the value of {text}, which another entry point changes",
                    hint="decide by an argument, or choose by torch.where",
                )
    return [merging.merged(number) for number in range(len(machines))]


def _refuse_numbers(states: Sequence[EntryState]) -> None:
    """Python numbers are kept by one entry point alone."""
    for writer in states:
        for reader in states:
            common = [text for home, text in writer.written.items() if home in reader.read]
            if writer is not reader and (common or (writer.written and reader.explores)):
                what = common[0] if common else next(iter(writer.written.values()))
                raise ExportError(
                    f"{what} is changed by {writer.name}, and {reader.name} reads it",
                    hint="entry points share tensors: keep the number in one",
                )


class _Merging:
    """Storages of all machines by their memory: which bytes of it, and whether anything writes them."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._spans: dict[int, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._states: set[int] = set()
        for machine in machines:
            for storage in machine.storages:
                key, end = _key(storage), storage.begin + storage.data.numel()
                first, last = self._spans.get(key, (storage.begin, end))
                self._spans[key] = min(first, storage.begin), max(last, end)
                self._names.setdefault(key, storage.name)
            self._states |= {
                _key(machine.storages[each.storage])
                for each in machine.registers
                if each.kind is RegisterKind.STATE and each.storage is not None
            }
        self._numbers = {key: number for number, key in enumerate(self._spans)}
        self._storages = tuple(map(self._storage, self._spans))
        self._registers = self._state_registers()

    def is_state(self, tensor: torch.Tensor) -> bool:
        return int(tensor.untyped_storage()._cdata) in self._states

    def _storage(self, key: int) -> Storage:
        first, last = self._spans[key]
        parts = [each for machine in self._machines for each in machine.storages if _key(each) == key]
        name = f"{self._names[key]}#{self._numbers[key]}"
        for part in parts:
            if part.data.numel() == last - first:
                return replace(part, name=name)
        data = torch.zeros(last - first, dtype=torch.uint8, device=parts[0].data.device)
        for part in parts:
            data[part.begin - first : part.begin - first + part.data.numel()] = part.data
        return Storage(name, data, parts[0].origin, first)

    def _placed(self, machine: Machine, register: Register) -> Register:
        """A register where its storage is in the list of all."""
        if register.storage is None:
            return register
        storage = machine.storages[register.storage]
        key = _key(storage)
        kind = RegisterKind.STATE if key in self._states else register.kind
        offset = register.offset + storage.begin - self._spans[key][0]
        return replace(register, kind=kind, storage=self._numbers[key], offset=offset)

    def _state_registers(self) -> dict[Register, str]:
        """Those of all machines, without their names; their names, each once."""
        registers: dict[Register, str] = {}
        for machine in self._machines:
            for each in machine.registers:
                placed = self._placed(machine, each)
                if placed.kind is RegisterKind.STATE and replace(placed, name="") not in registers:
                    copies, name = 1, each.name
                    while name in registers.values():
                        copies += 1
                        name = f"{each.name}#{copies}"
                    registers[replace(placed, name="")] = name
        return registers

    def merged(self, number: int) -> Machine:
        machine = self._machines[number]
        registers = []
        missing = dict(self._registers)
        for each in machine.registers:
            placed = self._placed(machine, each)
            if placed.kind is RegisterKind.STATE:
                placed = replace(placed, name=self._registers[replace(placed, name="")])
                missing.pop(replace(placed, name=""), None)
            registers.append(placed)
        registers += [replace(each, name=name) for each, name in missing.items()]
        merged = replace(machine, storages=self._storages, registers=tuple(registers))
        check_machine(merged)
        return merged


def _key(storage: Storage) -> int:
    return id(storage) if storage.origin is None else int(storage.origin._cdata)


def without_origins(machine: Machine) -> Machine:
    """A machine that no longer refers to memory of the model."""
    return replace(machine, storages=tuple(replace(each, origin=None) for each in machine.storages))


def entry_states(names: Sequence[str]) -> Mapping[str, EntryState]:
    """One for each entry point of a file."""
    first = EntryState()
    return {name: first.beside(name) for name in names}
