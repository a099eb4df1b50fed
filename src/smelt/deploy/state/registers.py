"""The registers of an artifact as they grow: arguments first, then what variants read and write, each once.

A tensor is known by its identity, a number by its home. Tensors that share memory share a storage; once something
writes one of them, all of them are state.
"""

from collections.abc import Iterator
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.replay.described import Given
from smelt.deploy.call_form import CallForm
from smelt.deploy.errors import ExportError
from smelt.deploy.state.homes import Home, Homes
from smelt.deploy.state.names import StateNames
from smelt.deploy.state.sharing import Copies, EntryState
from smelt.device.host_library import HOST
from smelt.ir.artifact.machine import Argument, ArgumentKind, Register, RegisterKind, RegisterView, Storage
from smelt.symbolic.shapes import span

_LARGEST_SEED = (1 << 63) - 1


@dataclass(slots=True, eq=False)
class _Draft:
    """A register that is not finished. `tensor`: what it holds at first, of what is kept between calls."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...] | None = None
    tensor: torch.Tensor | None = None
    is_input: bool = False
    written: bool = False


class Registers:
    """Numbers registers, and makes storages of what they hold."""

    def __init__(self, form: CallForm, homes: Homes | None = None, shared: EntryState | None = None) -> None:
        self._shared = shared or EntryState()
        self._homes = homes or Homes(form.target)
        self._drafts: list[_Draft] = []
        self._names = StateNames(form.target)
        self._by_path: dict[tuple[Any, ...], int] = {}  # arguments
        self._by_tensor: dict[int, int] = {}
        self._by_home: dict[Home, int] = {}
        self._kept: list[Any] = []  # whose ids are keys
        self.arguments = tuple(self._argument(leaf) for leaf in form.leaves)
        self.paths = {leaf.path: number for number, leaf in enumerate(form.leaves)}

    def _argument(self, leaf: Any) -> Argument:
        if isinstance(leaf.example, torch.Tensor):
            shape: list[int | str] = list(leaf.example.shape)
            for dim, dimension in leaf.sizes:
                shape[dim] = dimension.name
            draft = _Draft(leaf.name, leaf.example.dtype, tuple(shape), is_input=True)
            self._by_path[leaf.path] = self._added(draft)
            return Argument(leaf.name, ArgumentKind.TENSOR, self._by_path[leaf.path])
        if leaf.is_open:
            dtype = torch.float64 if type(leaf.example) is float else torch.int64
            self._by_path[leaf.path] = self._added(_Draft(leaf.name, dtype, (), is_input=True))
            return Argument(leaf.name, ArgumentKind.NUMBER, self._by_path[leaf.path])
        return Argument(leaf.name, ArgumentKind.VALUE, None, (leaf.example,))

    def _added(self, draft: _Draft) -> int:
        self._drafts.append(draft)
        return len(self._drafts) - 1

    def argument_of(self, origin: Given) -> int | None:
        """The register of an argument; None for anything else."""
        return self._by_path.get((origin.slot, *origin.keys)) if origin.slot is not None else None

    def value_of(self, origin: Given) -> int | None:
        """The number of an argument that is one value of some; None for anything else."""
        argument = self.paths.get((origin.slot, *origin.keys))
        return argument if argument is not None and self.arguments[argument].kind is ArgumentKind.VALUE else None

    def tensor(self, origin: Given) -> int:
        """The register of a tensor from outside: an argument, or one that is kept."""
        register = self.argument_of(origin)
        if register is not None:
            return register
        return self.kept(origin.real, origin)

    def kept(self, tensor: torch.Tensor, origin: Given) -> int:
        """The register of a tensor that is kept between calls."""
        known = self._by_tensor.get(id(tensor))
        if known is None:
            _check_kept(tensor, origin)
            self._kept.append(tensor)
            name = self._names.of(origin)
            known = self._added(_Draft(name, tensor.dtype, tuple(tensor.shape), tensor.detach()))
            self._by_tensor[id(tensor)] = known
        return known

    def kept_at(self, home: Home | None, tensor: torch.Tensor, origin: Given) -> int:
        """The register of a tensor that is made before the first call and kept there: one for all variants."""
        known = None if home is None else self._by_home.get(home)
        if known is None:
            known = self.kept(tensor, origin)
            if home is not None:
                self._by_home[home] = known
        return known

    def number(self, origin: Given) -> int:
        """The register of a Python number from outside."""
        register = self.argument_of(origin)
        if register is not None:
            return register
        home = self._homes.of(origin.path)
        known = self._by_home.get(home)
        if known is None:
            value = self._homes.value(origin.path, origin.real)
            dtype = torch.float64 if type(value) is float else torch.int64
            held = torch.tensor(value, dtype=dtype)
            known = self._by_home[home] = self._added(_Draft(self._names.of(origin), dtype, (), held))
        return known

    def numbers(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Numbers that are kept: their registers, and what the first call finds."""
        for register in self._by_home.values():
            tensor = self._drafts[register].tensor
            if tensor is not None and tensor.numel() == 1 and tensor.dtype in (torch.int64, torch.float64):
                yield register, tensor

    def number_at(self, home: Home) -> int | None:
        """The register of the number that is kept there; None if none is."""
        return self._by_home.get(home)

    def generator(self) -> tuple[RegisterView, RegisterView]:
        """Registers of the seed and of the offset that random numbers follow from. Both are state: a program may begin
        with another seed."""
        generator = self._shared.generator
        if not generator:
            seed = torch.tensor(torch.initial_seed() & _LARGEST_SEED, device=HOST)
            generator += [("seed", seed), ("offset", torch.zeros_like(seed))]
        views = []
        for name, tensor in generator:
            number = self.kept(tensor, Given((("value", tensor),), f"generator.{name}", tensor))
            self.write(number)
            views.append(RegisterView(number, (), ()))
        return views[0], views[1]

    def local(self, dtype: torch.dtype) -> int:
        """A new register for what a program makes."""
        return self._added(_Draft("", dtype))

    def write(self, number: int, where: str = "") -> None:
        """A register is written."""
        draft = self._drafts[number]
        if draft.is_input:
            raise ExportError(
                f"argument {draft.name} is written in place{where}",
                hint="write to a copy (x = x.clone()), or keep the tensor in a buffer of the module, which is state",
            )
        draft.written = True

    def name_of(self, number: int) -> str:
        return self._drafts[number].name

    def rely_on(self, tensor: torch.Tensor, text: str) -> None:
        """What a tensor holds has decided what the function does."""
        self._shared.relied.append((tensor, text))

    def share_memory(self, one: int, other: int) -> bool:
        """Whether two registers that are kept may show the same bytes."""
        first, second = self._drafts[one].tensor, self._drafts[other].tensor
        if first is None or second is None or _storage_key(first) != _storage_key(second):
            return False
        (begin, end), (start, stop) = _span(first), _span(second)
        return begin < stop and start < end

    def changes(self, number: int) -> bool:
        """Whether a register may hold something else at another call."""
        return self._drafts[number].is_input or self._drafts[number].written

    def finished(self) -> tuple[tuple[Register, ...], tuple[Storage, ...]]:
        """All registers and storages; contents are copied."""
        groups: dict[int, list[_Draft]] = {}
        for draft in self._drafts:
            if draft.tensor is not None:
                groups.setdefault(_storage_key(draft.tensor), []).append(draft)
        storages: list[Storage] = []
        places: dict[int, tuple[int, int, RegisterKind]] = {}
        for group in groups.values():
            kind = RegisterKind.STATE if any(draft.written for draft in group) else RegisterKind.CONSTANT
            storage, offsets = _copied(group, self._shared.copies)
            for draft, offset in zip(group, offsets, strict=True):
                places[id(draft)] = (len(storages), offset, kind)
            storages.append(storage)
        return tuple(_register(draft, places.get(id(draft))) for draft in self._drafts), tuple(storages)


def _register(draft: _Draft, place: tuple[int, int, RegisterKind] | None) -> Register:
    if place is None:
        kind = RegisterKind.INPUT if draft.is_input else RegisterKind.LOCAL
        return Register(draft.name, kind, draft.dtype, draft.shape)
    storage, offset, kind = place
    assert draft.tensor is not None
    stride = None if draft.tensor.is_contiguous() else tuple(draft.tensor.stride())
    return Register(draft.name, kind, draft.dtype, draft.shape, stride, storage, offset)


def _check_kept(tensor: torch.Tensor, origin: Given) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise ExportError(f"{origin.text} is a {type(tensor).__qualname__} of layout {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        raise ExportError(f"{origin.text} is a conjugated or negated view", hint="resolve it first: x.resolve_conj()")


def _storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its memory that a tensor shows: the first, and behind the last."""
    begin = int(tensor.storage_offset()) * tensor.itemsize
    return begin, begin + int(span(tensor.shape, tensor.stride())) * tensor.itemsize


def _copied(group: list[_Draft], copies: Copies) -> tuple[Storage, list[int]]:
    """The bytes that some tensors show of one memory, and where in them each begins. `copies`: those that there are."""
    spans = []
    for draft in group:
        assert draft.tensor is not None
        spans.append(_span(draft.tensor))
    first = min(begin for begin, _ in spans) // 64 * 64
    last = max(end for _, end in spans)
    held = group[0].tensor
    assert held is not None
    storage = held.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=held.device).set_(storage)
    key = _storage_key(held), first, last
    if key not in copies:
        copies[key] = storage, whole[first : min(last, whole.numel())].to(HOST, copy=True)
    return Storage(group[0].name, copies[key][1], storage, first), [begin - first for begin, _ in spans]
