"""Compiled graphs in the disk cache: what a graph became, as plain data, and back without any of the stages.

    torch-level graph ── key ──► file ──► StoredGraph: a program that can be run, and its plan

A file has the form of an artifact without weights (`ir.artifact_file`): a TABLE, the flat program, which is run as it
is; a CODE for each image of machine code; and a MANIFEST with the rest: the plan, objects that the table refers to,
what launches need to know of kernels, and the kernels of GPUs, to be built again for buffers that are not aligned.
`CacheEntry.of(traced, options)` is where a graph has its place; `read` and `write` never raise for what is on the disk.
Each backward (per set of results with gradients) is its own file, written when it is first needed. Programs are checked
before they are written, and a checksum tells that they are read as written; a file that is whole but cannot be used
(`ir.serialize`, missing functions) is dropped like a damaged one. Under logs, `smelt.explain` and `check_specs` nothing
is read: the stages run.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from smelt.base import events
from smelt.base.errors import SpecError
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options, config
from smelt.device import KernelModule, generator_of
from smelt.ir import serialize
from smelt.ir.artifact_file.code import Code, code_section, read_code
from smelt.ir.artifact_file.container import ArtifactError, Section
from smelt.ir.artifact_file.layout import Kind
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced
from smelt.ir.kernel import HOST, AnyKernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.serialize import CannotStore
from smelt.ir.table.read import ProgramReader, read_program
from smelt.ir.table.text import text_of
from smelt.pipeline.cache import calibrated as _calibrated  # noqa: F401  costs come from the cache from then on
from smelt.pipeline.cache.keys import environment_key, key_of
from smelt.pipeline.parts import launcher_for
from smelt.runtime.cache import CacheFile, CacheStore, open_store
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.code_image import Image, Loaded
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
        except CannotStore as reason:
            events.count("cache_unstorable")
            events.emit("cache", f"a graph is not cached: {reason}")
            return None

    @classmethod
    def of_text(cls, text: str, options: Options) -> "CacheEntry | None":
        """The same for a graph of which only its part of the key is at hand."""
        store = open_store()
        try:
            return None if store is None else cls(store, f"{environment_key(options)}\n{text}", first=True)
        except CannotStore:
            return None

    def read(self, options: Options, arenas: Arenas) -> StoredGraph | None:
        """What the graph became in an earlier process, or earlier in this one."""

        def unpacked(contents: CacheFile) -> StoredGraph:
            about, plan, why_not_replay = _fields(contents, 3)
            if not isinstance(plan, JointPlan):
                raise ValueError("it holds no plan")
            return StoredGraph(_bound(about, contents, False, options, arenas), plan, why_not_replay)

        return self._read(self.key, unpacked, options)

    def read_backward(self, arrived: int, options: Options, arenas: Arenas) -> Executable | None:
        """The backward for gradients of the results that have a bit in `arrived`."""

        def unpacked(contents: CacheFile) -> Executable:
            (about,) = _fields(contents, 1)
            return _bound(about, contents, True, options, arenas)

        return self._read(self._backward_key(arrived), unpacked, options)

    def write(self, executable: Executable, plan: JointPlan, why_not_replay: str | None) -> None:
        """Keep what the graph became."""
        self._write(self.key, executable, plan, why_not_replay)

    def write_backward(self, arrived: int, executable: Executable) -> None:
        self._write(self._backward_key(arrived), executable)

    def _backward_key(self, arrived: int) -> str:
        return f"{self.key}\nbackward {arrived:b}"

    def _read(self, key: str, unpacked: Callable[[CacheFile], Found], options: Options) -> Found | None:
        if options.check_specs or config.check_specs or any(map(events.wanted, _STAGE_CHANNELS)):
            return None
        with events.timed("cache read"):
            contents = self.store.get(key)
            if contents is None:
                events.count("cache_misses", not self.first)
                return None
            try:
                value = unpacked(contents)
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
                contents = _packed(executable, *more)
            except (CannotStore, SpecError) as reason:
                events.count("cache_unstorable")
                events.emit("cache", f"a graph is not cached: {reason}")
                return
            if self.store.put(key, contents):
                events.count("cache_writes")


def _packed(executable: Executable, *more: object) -> CacheFile:
    """A program as the sections of a file."""
    from smelt.ir.check_kernel import check_program  # not where programs are only read

    program, flat = executable.program, executable.flat
    assert program is not None  # it was compiled here
    kernels: Kernels = executable.keep_alive
    check_program(program, after="fuse")
    images: dict[int, tuple[int, Image | CudaCode | KernelModule]] = {}  # by identity → number, image
    rows = []
    for name, kernel in kernels.items():
        image = kernel.built.image
        if image is None:
            raise CannotStore("LLVM itself loaded the code")
        place, _ = images.setdefault(id(image), (len(images), image))
        needs = (kernel.per_thread_workspace, kernel.phases, kernel.workspace)
        rows.append((name, place, kernel.symbol, kernel.buffers, kernel.size_count, tuple(kernel.numbers), *needs))
    described = [_described(image) for _, image in images.values()]
    about = (stored_objects(flat), tuple(rows), tuple(description for description, _ in described))
    rebuilt = tuple(kernel for kernel in program.kernels if kernel.target != HOST)
    values = {"program": serialize.dump((about, *more)), "kernels": json.dumps(serialize.dump(rebuilt))}
    codes = [code_section(code) for _, code in described]
    return CacheFile(values, (Section.of(Kind.TABLE, flat.table), *codes))


def _described(image: "Image | CudaCode | KernelModule") -> tuple[tuple[Any, ...], Code]:
    """What a manifest says of code, and the code. Of a GPU's that is PTX, and what was assembled for the kinds of GPU
    there are; of a chip's, what the chip compiles."""
    if isinstance(image, Image):
        names, offsets = zip(*image.symbols, strict=True) if image.symbols else ((), ())
        return ("image", tuple(names)), Code(image.code, tuple(offsets), image.slots)
    if isinstance(image, KernelModule):
        pieces = [image.code.encode()] if isinstance(image.code, str) else image.code
        return ("module", image.form, image.symbols), Code.of_pieces(pieces)
    made_for = tuple((each.capability, each.driver, each.log) for each in image.images)
    pieces = [image.ptx.encode() + b"\0", *(each.code for each in image.images)]
    return ("cuda", made_for), Code.of_pieces(pieces)


def _loaded(description: Any, code: Code, target: str) -> Any:
    """What `_described` was given, where it can be run."""
    kind, *rest = description
    if kind == "image":
        return map_image(Image(code.image, tuple(zip(*rest, code.entries, strict=True)), code.slots))
    if kind == "module":
        form, symbols = rest
        text = code.image.decode() if form == "llvm" else tuple(code.pieces)
        return generator_of(target).compile(KernelModule(form, text, symbols)).loaded
    from smelt.runtime.cuda.image import CudaCode, CudaImage  # not where there is no GPU

    ptx, *assembled = code.pieces
    images = [CudaImage(each, *made_for) for each, made_for in zip(assembled, *rest, strict=True)]
    return CudaCode(ptx[:-1].decode(), images)


def _fields(contents: CacheFile, count: int) -> tuple[Any, ...]:
    value = serialize.parse(contents.values["program"])
    if not isinstance(value, tuple) or len(value) != count:
        raise ValueError("it holds something else")
    return value


def _bound(about: Any, contents: CacheFile, consuming: bool, options: Options, arenas: Arenas) -> Executable:
    """A stored program with its code, ready to run."""
    objects, rows, described = about
    table_section, *codes = contents.sections
    if [each.kind for each in contents.sections] != [Kind.TABLE, *[Kind.CODE] * len(described)]:
        raise ValueError("its sections are others")
    table = bytes(table_section.data)
    pairs = zip(described, codes, strict=True)
    kernels = _kernels(rows, [_loaded(each, read_code(code.data), options.target) for each, code in pairs])
    reader = ProgramReader(table)
    if reader.program.consuming != consuming:
        raise ValueError("it holds a program that is called in another way")

    text = contents.values["kernels"]  # the rest of the file is not held

    @functools.cache
    def rebuilt() -> dict[str, AnyKernel]:
        return {kernel.name: kernel for kernel in serialize.parse(json.loads(text))}

    def launcher(name: str, target: str) -> BuiltKernel:
        return launcher_for(target, kernels[name], lambda: rebuilt()[name])

    flat = restored(table, objects, launcher)
    events.count("kernels", reader.length_of("launches"))
    return Executable.of_table(flat, options.threads, kernels, arenas, options.cuda_graphs)


def text_of_file(contents: CacheFile) -> str:
    """The program in a file, for people; the kinds of values in one that holds none."""
    if not contents.sections or contents.sections[0].kind != Kind.TABLE:
        return ", ".join(contents.values) or "code"
    try:
        (objects, *_), *_ = serialize.parse(contents.values["program"])
        flat = restored(bytes(contents.sections[0].data), objects, lambda name, target: None)
        return text_of(read_program(flat.table, flat.objects))
    except Exception as error:  # whatever it is, it is no program of ours
        raise ArtifactError(f"the file holds no program: {error}") from error


def _kernels(rows: Any, images: Sequence[Any]) -> dict[str, StoredCode]:
    kernels = {}
    for name, place, symbol, buffers, size_count, numbers, per_thread, phases, workspace in rows:
        if not 0 <= place < len(images):
            raise ValueError(f"kernel {name} has no code")
        image, functions = images[place], [phase.symbol for phase in phases] or [symbol]
        if isinstance(image, Loaded) and not all(each in image.offsets for each in functions):
            raise ValueError(f"kernel {name} has no code")
        kernels[name] = StoredCode(image, symbol, buffers, size_count, bytes(numbers), per_thread, phases, workspace)
    return kernels
