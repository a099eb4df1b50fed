"""Compiled graphs in the disk cache: what a graph became, as plain data, and back without any of the stages.

    torch-level graph ── key ──► file ──► StoredGraph: a program that can be run, and its plan

A file holds a program as a flat table, which is run as it is, its machine code as images, and the program as the stages
know it, which is read where somebody asks for it, or where this process would write another table.
`CacheEntry.of(traced, options)` is where a graph has its place; `read` and `write` never raise for what is on the disk.
Each backward (per set of results with gradients) is its own file, written when it is first needed. Programs are checked
before they are written, and a checksum tells that they are read as written; a file that is whole but cannot be used
(`ir.serialize`, missing functions) is dropped like a damaged one. Under logs, `smelt.explain` and `check_specs` nothing
is read: the stages run.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from smelt.base import events
from smelt.base.errors import SpecError
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options, config
from smelt.device import KernelModule, generator_of
from smelt.ir import serialize
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced
from smelt.ir.kernel import HOST, AnyKernel, Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.program import Launch, Program
from smelt.ir.table.read import ProgramReader
from smelt.pipeline.cache.keys import Unstorable, environment_key, key_of
from smelt.pipeline.parts import bind, launcher_for
from smelt.runtime.cache import CacheStore, open_store
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.code_image import Image, Loaded, Slot
from smelt.runtime.program.code_image import load as map_image
from smelt.runtime.program.flatten import BuiltKernel
from smelt.runtime.program.launch import Executable
from smelt.runtime.program.stored_table import restored, stored_objects

if TYPE_CHECKING:
    from smelt.codegen.build import CompiledKernel
    from smelt.runtime.cuda.image import CudaCode

Kernels = Mapping[str, "CompiledKernel"]
Found = TypeVar("Found")

_STAGE_CHANNELS = ("joint", "forward", "backward", "fusion", "kernels", "loops", "llvm", "asm")


@dataclass(frozen=True, slots=True)
class StoredCode:
    """Machine code of one kernel, as `ir.kernel_code.KernelCode` says. `loaded` keeps it in memory; a chip's is the
    handle that the chip gave for it."""

    loaded: Any
    symbol: str
    buffers: int
    size_count: int
    numbers: bytes
    per_thread_workspace: int
    phases: tuple[GridPhase, ...]
    workspace: int

    def address(self, symbol: str, /) -> int:
        return self.loaded.address(symbol) if isinstance(self.loaded, Loaded) else 0


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A graph that was compiled, but for its backwards.

    `why_not_replay`: why results cannot be recomputed differentiably.
    """

    forward: Executable
    plan: JointPlan
    why_not_replay: str | None


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The place of one graph in the cache."""

    store: CacheStore
    key: str
    first: bool = False  # a miss here is followed by another lookup, which counts it

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

    @classmethod
    def of_text(cls, text: str, options: Options) -> "CacheEntry | None":
        """The same for a graph of which only its part of the key is at hand."""
        store = open_store()
        try:
            return None if store is None else cls(store, f"{environment_key(options)}\n{text}", first=True)
        except Unstorable:
            return None

    def read(self, options: Options, arenas: Arenas) -> StoredGraph | None:
        """What the graph became in an earlier process, or earlier in this one."""

        def unpacked(parts: list[bytes]) -> StoredGraph:
            half, plan, why_not_replay = _fields(parts[0], 3)
            if not isinstance(plan, JointPlan):
                raise ValueError("it holds no plan")
            return StoredGraph(_bound(half, parts, False, options, arenas), plan, why_not_replay)

        return self._read(self.key, unpacked, options)

    def read_backward(self, arrived: int, options: Options, arenas: Arenas) -> Executable | None:
        """The backward for gradients of the results that have a bit in `arrived`."""

        def unpacked(parts: list[bytes]) -> Executable:
            (half,) = _fields(parts[0], 1)
            return _bound(half, parts, True, options, arenas)

        return self._read(self._backward_key(arrived), unpacked, options)

    def write(self, executable: Executable, plan: JointPlan, why_not_replay: str | None) -> None:
        """Keep what the graph became."""
        self._write(self.key, executable, plan, why_not_replay)

    def write_backward(self, arrived: int, executable: Executable) -> None:
        self._write(self._backward_key(arrived), executable)

    def _backward_key(self, arrived: int) -> str:
        return f"{self.key}\nbackward {arrived:b}"

    def _read(self, key: str, unpacked: Callable[[list[bytes]], Found], options: Options) -> Found | None:
        if options.check_specs or config.check_specs or any(map(events.wanted, _STAGE_CHANNELS)):
            return None
        with events.timed("cache read"):
            parts = self.store.get(key)
            if parts is None:
                events.count("cache_misses", not self.first)
                return None
            try:
                value = unpacked(parts)
            except Exception as reason:  # whatever it is, compiling is the answer
                events.count("cache_misses", not self.first)
                events.emit("cache", f"{self.store.path(key).name} is not used: {reason}")
                self.store.drop(key)
                return None
        events.count("cache_hits")
        return value

    def _write(self, key: str, executable: Executable, *more: object) -> None:
        with events.timed("cache write"):
            try:
                parts = _packed(executable, *more)
            except (serialize.CannotStore, SpecError) as reason:
                events.count("cache_unstorable")
                events.emit("cache", f"a graph is not cached: {reason}")
                return
            if self.store.put(key, parts):
                events.count("cache_writes")


def _packed(executable: Executable, *more: object) -> list[bytes]:
    """What belongs to a program's table (its objects, what was asked to write it, which image has which kernel, what
    the images need) and `more`; then the table, the program, and the images."""
    from smelt.ir.check_kernel import check_program  # not where programs are only read

    program, flat = executable.program, executable.flat
    kernels: Kernels = executable.keep_alive
    check_program(program, after="fuse")
    images: dict[int, tuple[int, Image | CudaCode | KernelModule]] = {}  # by identity → number, image
    rows = []
    for name, kernel in kernels.items():
        image = kernel.built.image
        if image is None:
            raise serialize.CannotStore("LLVM itself loaded the code")
        place, _ = images.setdefault(id(image), (len(images), image))
        needs = (kernel.per_thread_workspace, kernel.phases, kernel.workspace)
        rows.append((name, place, kernel.symbol, kernel.buffers, kernel.size_count, tuple(kernel.numbers), *needs))
    packed = [_packed_image(image) for _, image in images.values()]
    described = tuple(description for description, _ in packed)
    half = (stored_objects(flat), tuple(flat.asked.items()), tuple(rows), described)
    texts = serialize.dump((half, *more)), serialize.dump(_without_stages(program))
    return [texts[0].encode(), flat.table, texts[1].encode(), *(code for _, code in packed)]


def _packed_image(image: "Image | CudaCode | KernelModule") -> tuple[tuple[Any, ...], bytes]:
    """What describes an image, and its code. Of a GPU's that is what was assembled for the kinds of GPU there are; of a
    chip's, what the chip compiles."""
    if isinstance(image, Image):
        return (image.symbols, tuple((slot.offset, slot.name, slot.addend) for slot in image.slots)), image.code
    if isinstance(image, KernelModule):
        pieces = [image.code.encode()] if isinstance(image.code, str) else list(image.code)
        return (image.form, image.symbols, tuple(map(len, pieces))), b"".join(pieces)
    codes = [each.to_bytes() for each in image.images]
    return (image.ptx, tuple(map(len, codes))), b"".join(codes)


def _loaded_image(description: Any, code: bytes, target: str) -> Any:
    if len(description) == 3:
        form, symbols, lengths = description
        return generator_of(target).compile(_module(form, symbols, lengths, code)).loaded
    first, second = description
    if not isinstance(first, str):
        return map_image(Image(code, first, tuple(Slot(*slot) for slot in second)))
    from smelt.runtime.cuda.image import CudaCode, CudaImage  # not where there is no GPU

    images = []
    for length in second:
        images.append(CudaImage.from_bytes(code[:length]))
        code = code[length:]
    return CudaCode(first, images)


def _module(form: str, symbols: tuple[str, ...], lengths: tuple[int, ...], code: bytes) -> KernelModule:
    if sum(lengths) != len(code):
        raise ValueError("code for a chip is cut short")
    if form == "llvm":
        return KernelModule(form, code.decode(), symbols)
    ends = list(itertools.accumulate(lengths))
    return KernelModule(form, tuple(code[end - size : end] for end, size in zip(ends, lengths, strict=True)), symbols)


def _without_stages(program: Program) -> Program:
    """The program with its kernels' signatures only: their code is in the images. Kernels for GPUs stay as they are,
    to be built again where a buffer is not aligned as that code needs it."""
    bare: dict[str, AnyKernel] = {}
    for kernel in program.kernels:
        if isinstance(kernel, Kernel) and kernel.target == HOST:
            bare[kernel.name] = replace(kernel, stages=())
        else:
            bare[kernel.name] = kernel
    steps = [Launch(bare[step.kernel.name], step.args) if isinstance(step, Launch) else step for step in program.steps]
    return replace(program, steps=tuple(steps))


def _fields(part: bytes, count: int) -> tuple[Any, ...]:
    value = serialize.parse(part.decode())
    if not isinstance(value, tuple) or len(value) != count:
        raise ValueError("it holds something else")
    return value


def _bound(half: Any, parts: list[bytes], consuming: bool, options: Options, arenas: Arenas) -> Executable:
    """A stored program with its code, ready to run."""
    objects, asked, rows, described = half
    _, table, text, *codes = parts
    kernels = _kernels(rows, described, codes, options.target)

    @functools.cache
    def program() -> Program:
        parsed = serialize.parse(text.decode())
        if not isinstance(parsed, Program):
            raise ValueError("it holds no program")
        return parsed

    reader = ProgramReader(table)
    if reader.program.consuming != consuming:
        raise ValueError("it holds a program that is called in another way")

    def launcher(name: str, target: str) -> BuiltKernel:
        return launcher_for(target, kernels[name], lambda: _kernel_of(program(), name), options)

    flat = restored(table, objects, asked, launcher)
    events.count("kernels", reader.length_of("launches"))
    if flat is None:
        return bind(program(), kernels, options, consuming, arenas)
    return Executable.of_table(flat, program, options.threads, kernels, arenas)


def _kernel_of(program: Program, name: str) -> AnyKernel:
    return next(kernel for kernel in program.kernels if kernel.name == name)


def _kernels(rows: Any, described: Any, codes: Sequence[bytes], target: str) -> dict[str, StoredCode]:
    if len(described) != len(codes):
        raise ValueError("an image is missing")
    images = [_loaded_image(description, code, target) for description, code in zip(described, codes, strict=True)]
    kernels = {}
    for name, place, symbol, buffers, size_count, numbers, per_thread, phases, workspace in rows:
        if not 0 <= place < len(images):
            raise ValueError(f"kernel {name} has no code")
        image, functions = images[place], [phase.symbol for phase in phases] or [symbol]
        if isinstance(image, Loaded) and not all(each in image.offsets for each in functions):
            raise ValueError(f"kernel {name} has no code")
        kernels[name] = StoredCode(image, symbol, buffers, size_count, bytes(numbers), per_thread, phases, workspace)
    return kernels
