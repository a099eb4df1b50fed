"""Compiles LLVM text to machine code in this process with llvmlite, which is imported when the first kernel is built.

Several texts are built in parallel, each in its own thread and LLVM context. llvmlite holds a lock around every call;
the two slow calls run without it. Functions that several modules call are compiled separately (`shared_objects`).
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from smelt import _native
from smelt.base import events, locks
from smelt.base.errors import NotEnoughMemory, SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.headroom import LLVM_STACK, why_not_build
from smelt.codegen.llvm.link import CannotLink, link
from smelt.codegen.llvm.print_module import SharedFunction, apart, print_module
from smelt.codegen.llvm.shared_objects import bundle_text, bundles, known_objects, remember
from smelt.codegen.loops.math.library import LIBRARY
from smelt.device import KernelModule, Target
from smelt.ir.loops import Module
from smelt.runtime.program.code_image import Image
from smelt.runtime.program.code_image import load as map_image
from smelt.torch_abi.symbols import PARALLEL_FOR, SIMT_BARRIER, find_symbol

if TYPE_CHECKING:
    from smelt.runtime.cuda.image import CudaCode

_Part = TypeVar("_Part")
_Made = TypeVar("_Made")
_lock = locks.lock()
locks.whole_at_fork(_lock, is_inner=True)  # LLVM has locks of its own, which nobody can free in a child
_LLVM_NEEDS = 1 << 20  # bytes of stack; where less is left it runs on a thread of its own


@functools.cache
def _unlocked() -> ctypes.CDLL:
    """llvmlite's library, without its lock."""
    library = ctypes.CDLL(llvm().ffi.lib._name)
    for name in ("LLVMPY_TargetMachineEmitToMemory", "LLVMPY_RunNewFunctionPassManager"):
        function, known = getattr(library, name), getattr(llvm().ffi.lib, name)
        function.argtypes, function.restype = known.argtypes, known.restype
    return library


@functools.cache
def llvm() -> Any:
    """`llvmlite.binding`, with the host's target made ready."""
    _make_sure_of_memory(1, is_loaded=False)
    import llvmlite.binding  # type: ignore[import-untyped]

    llvmlite.binding.initialize_native_target()
    llvmlite.binding.initialize_native_asmprinter()
    return llvmlite.binding


@functools.cache
def make_all_targets_ready() -> None:
    """Not only the host's."""
    llvm().initialize_all_targets()
    llvm().initialize_all_asmprinters()


@dataclass(frozen=True, slots=True)
class Built:
    """Machine code in memory, or on a device, which stays there as long as this object does.

    `image` is what it was mapped from, to be mapped again elsewhere, or what a chip has compiled; None where the
    platform's object files are not understood and LLVM itself put the code into memory.
    """

    address: Callable[[str], int]
    loaded: object
    image: "Image | CudaCode | KernelModule | None"


def machine(target: Target, level: int = 2) -> Any:
    """A code generator for `target`, for position-independent code."""
    backend = llvm().Target.from_triple(target.triple)
    reloc = "static" if target.triple.startswith("wasm") else "pic"  # the memory of a module begins at zero
    return backend.create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc=reloc, codemodel="small", abiname=target.abi
    )


@functools.cache
def _idle_machines(target: Target, level: int) -> list[Any]:
    return []


def _by_machine(use: Callable[[Any], _Made], target: Target, level: int = 2) -> _Made:
    """What `use` makes with a code generator, which nobody else uses meanwhile. They are kept: a new one describes the
    processor to LLVM again, 1.4 ms for each module. One that `use` failed with is not."""
    idle = _idle_machines(target, level)
    try:
        generator = idle.pop()
    except IndexError:
        generator = machine(target, level)
    result = use(generator)
    idle.append(generator)
    return result


@functools.cache
def _owning() -> tuple[type[Any], type[Any]]:
    """A context and a module that it owns."""

    class Context(llvm().ContextRef):  # type: ignore[misc]
        engine: Any = None

        def _dispose(self) -> None:
            if self.engine is not None:
                self.engine.close()
            super()._dispose()  # with its modules

    class Module(llvm().ModuleRef):  # type: ignore[misc]
        _owned = True

    return Context, Module


def _parsed(text: str, target: Target) -> Any:
    ffi = llvm().ffi
    owning, owned = _owning()
    context = owning(ffi.lib.LLVMPY_ContextCreate())
    with ffi.OutputString() as error:
        pointer = ffi.lib.LLVMPY_ParseAssembly(context, ctypes.c_char_p(text.encode()), error)
        if error:
            raise SmeltError("SM030", f"LLVM rejects the generated code: {error}")
    module = owned(pointer, context)
    module.triple = target.triple
    return module


def object_codes(texts: Sequence[str], target: Target) -> list[bytes]:
    """The object file of each text, made side by side: ELF, Mach-O, COFF or WebAssembly, by the target's triple."""
    return side_by_side(functools.partial(_object, target=target), texts)


def linked_object(text: str, bitcode: bytes, public: Collection[str], target: Target) -> bytes:
    """The object file of a text together with bitcode of any triple. Functions are local to it, except the `public`
    ones and weak ones."""
    build = functools.partial(_linked, bitcode=bitcode, public=public, target=target)
    return side_by_side(build, [text])[0]


def _linked(text: str, bitcode: bytes, public: Collection[str], target: Target) -> bytes:
    return _by_machine(functools.partial(_linked_by, text, bitcode, public, target), target)


def _linked_by(text: str, bitcode: bytes, public: Collection[str], target: Target, generator: Any) -> bytes:
    module = _compiled(text, target, generator)
    library = llvm().parse_bitcode(bitcode, context=module._context)
    library.triple, library.data_layout = module.triple, module.data_layout
    module.link_in(library)
    linkage = llvm().Linkage
    for function in module.functions:
        if not function.is_declaration and function.name not in public and function.linkage != linkage.weak_any:
            function.linkage = linkage.internal
    return _emitted(module, generator)


def _optimized(module: Any, generator: Any) -> None:
    """The text is in SSA form with explicit vectors, so only clean-up passes run."""
    passes = llvm().create_new_function_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    builder = llvm().create_pass_builder(generator, llvm().create_pipeline_tuning_options(speed_level=1))
    for function in module.functions:
        if not function.is_declaration:
            _unlocked().LLVMPY_RunNewFunctionPassManager(passes, function, builder)


def load(modules: Sequence[Module], target: Target, threads: int = 1) -> list[Built]:
    """Build each module for the host, side by side, and keep the results ready to call. Functions that modules share
    are made beside them, if nobody made them before, by up to so many threads."""
    if not any(module.helpers for module in modules) or not _has_sections(target):
        return side_by_side(functools.partial(_load, target=target), list(map(print_module, modules)))
    own, functions = [], dict[str, SharedFunction]()
    for module in modules:
        alone, shared = apart(module)
        own.append(alone)
        functions |= shared
    library = known_objects(functions, target)
    lists = bundles([name for name in functions if name not in library], functions, threads)
    build, together = functools.partial(_object, target=target), [bundle_text(names, functions) for names in lists]
    objects = side_by_side(build, [*own, *together], max(threads, len(own)))
    for names, each in zip(lists, objects[len(own) :], strict=True):
        library |= remember(names, functions, target, each)
    return [
        _mapped(data, functools.partial(print_module, module), target, library)
        for data, module in zip(objects, modules, strict=False)
    ]


def _has_sections(target: Target) -> bool:
    """Whether objects are ELF: others have other names for sections, and `link` does not read them."""
    return "linux" in target.triple


def side_by_side(build: Callable[[_Part], _Made], parts: Sequence[_Part], most: int | None = None) -> list[_Made]:
    """What `build` makes of each part by LLVM, by `most` threads at most."""
    count = min(len(parts), most or len(parts))
    with _native.Held(_lock):
        llvm()
        _make_sure_of_memory(count, is_loaded=True)
        if count == 1 and _native.stack_left() > _LLVM_NEEDS:
            return [build(part) for part in parts]
        with ThreadPoolExecutor(count) as threads:
            work: Callable[[_Part], _Made] = events.carrying(build)
            # The threads have stack enough, whatever the program wants its own to have.
            before = threading.stack_size()
            put_back = functools.partial(threading.stack_size, before)
            loading = _native.undoing(put_back, _submit, threads, work, parts)
            return [each.result() for each in loading]


def _submit(threads: ThreadPoolExecutor, work: Callable[[_Part], Any], parts: Sequence[_Part]) -> list[Any]:
    threading.stack_size(LLVM_STACK)
    return [threads.submit(work, part) for part in parts]


def _make_sure_of_memory(threads: int, *, is_loaded: bool) -> None:
    """LLVM ends the process where it gets no memory."""
    reason = why_not_build(threads, is_loaded=is_loaded)
    if reason is not None:
        raise NotEnoughMemory("SM030", reason)


def _load(text: str, target: Target) -> Built:
    return _mapped(_object(text, target), lambda: text, target, {})


def _mapped(data: bytes, text: Callable[[], str], target: Target, library: Mapping[str, bytes]) -> Built:
    """Map an object, with the library functions it calls; `text` prints the whole module, for LLVM where we cannot link
    it."""
    try:
        image = link(data, library)
    except CannotLink as reason:
        events.emit("llvm", f"left to LLVM to load: {reason}")
        return _load_by_llvm(text(), target)
    loaded = map_image(image)
    return Built(loaded.address, loaded, image)


def _object(text: str, target: Target) -> bytes:
    return _by_machine(lambda generator: _emitted(_compiled(text, target, generator), generator), target)


def _compiled(text: str, target: Target, generator: Any) -> Any:
    """An optimized module."""
    module = _parsed(text, target)
    if target.pointer_bytes != 8:  # which is what passes take for granted unless the module says otherwise
        module.data_layout = str(generator.target_data)
    _optimized(module, generator)
    return module


def _emitted(module: Any, generator: Any) -> bytes:
    ffi = llvm().ffi
    with ffi.OutputString() as error:
        buffer = _unlocked().LLVMPY_TargetMachineEmitToMemory(generator, module, 1, error)
        if not buffer:
            raise SmeltError("SM030", f"LLVM cannot write machine code: {error}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@functools.cache
def external_symbols() -> dict[str, int]:
    """Addresses of what generated code may call: ours, and those functions of the C library that are there."""
    names = [PARALLEL_FOR, SIMT_BARRIER, *LIBRARY.values(), *(f"{name}f" for name in LIBRARY.values())]
    return {name: address for name in names if (address := find_symbol(name)) is not None}


def _load_by_llvm(text: str, target: Target) -> Built:
    """By LLVM's own linker."""
    for name, address in external_symbols().items():
        llvm().add_symbol(name, address)
    backend = llvm().Target.from_triple(target.triple)
    generator = backend.create_target_machine(cpu=target.cpu, features=target.features, opt=2, jit=True)
    module = _parsed(text, target)
    _optimized(module, generator)
    context, module._context = module._context, None  # which is to hold the engine, and that the module
    context._owned = True  # if an exception comes in between, it stays: better than to go before the engine
    context.engine = engine = llvm().create_mcjit_compiler(module, generator)
    context._owned = False
    engine.finalize_object()
    return Built(lambda symbol: int(engine.get_function_address(symbol)), context, None)


def assemble_module(module: Module, target: Target) -> str:
    return assemble(print_module(module), target)


def assemble(text: str, target: Target, level: int = 2) -> str:
    """The assembly `text` becomes, for people to read or for another assembler."""
    with _native.Held(_lock):
        return assembled(text, target, level)


def assembled(text: str, target: Target, level: int = 2) -> str:
    """The same for callers of `side_by_side`, which holds the lock for all of them."""
    return _by_machine(functools.partial(_assembled, text, target), target, level)


def _assembled(text: str, target: Target, generator: Any) -> str:
    module = _parsed(text, target)
    try:
        module.verify()  # what is wrong in it would end the process below
    except RuntimeError as error:
        raise SmeltError("SM030", f"LLVM rejects the generated code: {error}") from error
    _optimized(module, generator)
    return str(generator.emit_assembly(module))
