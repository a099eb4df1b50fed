"""Compiled graphs in the disk cache: what a graph became, as plain data, and back without any of the stages.

    torch-level graph ── key ──► file ──► Compiled: programs, the plan that joins them, machine code as images

`CacheEntry.of(traced, options)` is where a graph has its place; `read` and `write` never raise for what is on the disk.
Programs are held to their rules before they are written, and that they are read as they were written the checksum
tells; a file that is whole but does not say what it should (`ir.stored`, functions that are not there) is dropped like
a damaged one. Where somebody watches the stages (logs, `smelt.explain`, `check_specs`) nothing is read, they run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.base import events
from smelt.base.errors import SpecError
from smelt.base.options import Options, config
from smelt.codegen.build import CompiledKernel
from smelt.ir import stored
from smelt.ir.check import check_program
from smelt.ir.graph import Traced
from smelt.ir.joint import Plan
from smelt.ir.program import Program
from smelt.pipeline.keys import Unstorable, key_of
from smelt.runtime.cache import Store, open_store
from smelt.runtime.image import Image, Loaded, Slot
from smelt.runtime.image import load as map_image

_WATCHED = ("joint", "forward", "backward", "fusion", "kernels", "llvm", "asm")


@dataclass(frozen=True, slots=True)
class Code:
    """Machine code of one kernel, as a launcher takes it. `owner` keeps it in memory."""

    address: int
    buffers: int
    fixed_workspace: int
    per_thread_workspace: int
    owner: object


@dataclass(frozen=True, slots=True)
class Half:
    """A program and its kernels by name."""

    program: Program
    kernels: dict[str, Code]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A graph that was compiled. `why_not_again`: why results cannot be computed again, differentiably."""

    forward: Half
    backward: Half | None
    plan: Plan
    why_not_again: str | None


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The place of one graph in the cache."""

    store: Store
    key: str

    @classmethod
    def of(cls, traced: Traced, options: Options) -> "CacheEntry | None":
        """None if the cache is off, or the graph has no place in it."""
        store = open_store()
        if store is None:
            return None
        try:
            with events.timed("cache key"):
                return cls(store, key_of(traced, options))
        except Unstorable as reason:
            events.count("cache_unstorable")
            events.emit("cache", f"a graph is not cached: {reason}")
            return None

    def read(self, options: Options) -> Compiled | None:
        """What the graph became in an earlier process, or earlier in this one."""
        if options.check_specs or config.check_specs or any(map(events.wanted, _WATCHED)):
            return None
        with events.timed("cache read"):
            parts = self.store.get(self.key)
            if parts is None:
                events.count("cache_misses")
                return None
            try:
                found = _unpacked(parts)
            except Exception as reason:  # whatever it is, compiling is the answer
                events.count("cache_misses")
                events.emit("cache", f"{self.store.path(self.key).name} is not used: {reason}")
                self.store.drop(self.key)
                return None
        events.count("cache_hits")
        return found

    def write(self, forward: Program, backward: Program | None, plan: Plan, why_not_again: str | None,
              kernels: Sequence[Mapping[str, CompiledKernel]]) -> None:  # fmt: skip
        """Keep what the graph became; `kernels` per program."""
        with events.timed("cache write"):
            try:
                parts = _packed(forward, backward, plan, why_not_again, kernels)
            except (stored.CannotStore, SpecError) as reason:
                events.count("cache_unstorable")
                events.emit("cache", f"a graph is not cached: {reason}")
                return
            if self.store.put(self.key, parts):
                events.count("cache_writes")


def _packed(
    forward: Program,
    backward: Program | None,
    plan: Plan,
    why_not_again: str | None,
    kernels: Sequence[Mapping[str, CompiledKernel]],
) -> list[bytes]:
    for program in (forward, backward):
        if program is not None:
            check_program(program, after="fuse")
    images: dict[int, tuple[int, Image, int]] = {}  # by identity → number, image, the number of the one it calls

    def number(image: Image, called: int) -> int:
        return images.setdefault(id(image), (len(images), image, called))[0]

    codes = []
    for half in kernels:
        rows = []
        for name, kernel in half.items():
            if kernel.built.images is None:
                raise stored.CannotStore("LLVM itself loaded the code")
            image, launcher = kernel.built.images
            place = number(image, number(launcher, -1))
            rows.append((name, place, kernel.symbol, kernel.buffers, kernel.fixed_workspace,
                         kernel.per_thread_workspace))  # fmt: skip
        codes.append(tuple(rows))
    ordered = sorted(images.values(), key=lambda each: each[0])
    described = tuple(
        (called, image.symbols, tuple((slot.offset, slot.name, slot.addend) for slot in image.slots))
        for _, image, called in ordered
    )
    value = (forward, backward, plan, why_not_again, tuple(codes), described)
    return [stored.dump(value).encode(), *(image.code for _, image, _ in ordered)]


def _unpacked(parts: list[bytes]) -> Compiled:
    forward, backward, plan, why_not_again, codes, described = _six(stored.parse(parts[0].decode()))
    if len(described) != len(parts) - 1:
        raise ValueError("an image is missing")
    images: list[Loaded] = []
    for (called, symbols, slots), code in zip(described, parts[1:], strict=True):
        image = Image(code, symbols, tuple(Slot(*slot) for slot in slots))
        others = dict.fromkeys(images[called].offsets, images[called]) if called >= 0 else {}
        images.append(map_image(image, others))
    halves = [_half(program, rows, images) for program, rows in zip((forward, backward), codes, strict=False)]
    if not isinstance(plan, Plan) or len(halves) != (1 if backward is None else 2):
        raise ValueError("the programs do not fit the plan")
    return Compiled(halves[0], halves[1] if len(halves) > 1 else None, plan, why_not_again)


def _six(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != 6:
        raise ValueError("it holds something else")
    return value


def _half(program: Any, rows: Any, images: Sequence[Loaded]) -> Half:
    if not isinstance(program, Program):
        raise ValueError("it holds no program")
    kernels = {}
    for name, place, symbol, buffers, fixed, per_thread in rows:
        if not 0 <= place < len(images) or symbol not in images[place].offsets:
            raise ValueError(f"kernel {name} has no code")
        kernels[name] = Code(images[place].address(symbol), buffers, fixed, per_thread, images[place])
    for kernel in program.kernels:
        if kernel.name not in kernels or kernels[kernel.name].buffers != len(kernel.parameters):
            raise ValueError(f"kernel {kernel.name} has no code")
    return Half(program, kernels)
