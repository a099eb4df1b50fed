"""The C part: the frame hook, the guard checker, and what runs compiled programs."""

from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType, GeneratorType
from typing import Any, Literal, Protocol, Self, overload

NULL: object
"""Stands for an empty stack slot or an unbound local wherever frame contents cross into Python."""

# One node of a guard tree: how to reach a value from its parent, what must hold of it, what lies below it.
#   accessor  ("slot", i) of the frame's localsplus; the slot after the last is the function object itself
#             ("attr", name) ("dict",) the instance __dict__ (of a type: its own dict)
#             ("key", k) of an exact dict or OrderedDict ("item", i) of a list or tuple, i >= 0
#             ("cell",) contents ("type",) ("globals",) ("builtins",) ("closure", i) of a function
#             ("value", obj) a fixed object, whatever the parent (globals of other modules, for instance)
#             Only ("slot", i) and ("value", obj) can stand at the root.
#   checks    ("type", T) exact; ("is", obj); ("length", n)
#             ("equals", v) same exact type and ==, all the way down tuples, lists and dicts (in order); floats by their
#             bits: 1 is not True or 1.0, -0.0 is not 0.0, nan is nan
#             ("keys", tuple) a dict's keys, in order; ("lacks", key) a dict has no such key
#             ("tensor", type, dtype, device, shape, stride, requires_grad); None in shape or stride: any size there,
#             None for the whole stride: any stride. Tensors that are lazily negated or conjugated never pass
#             ("unbound",) an unbound local or empty cell
#             ("class has", name, obj) a type or its bases hold this very object under the name, descriptors not run
#             ("class lacks", name) they hold nothing there
#             ("subclass", T, answer) whether T is among a type's bases; ("unregistered", T) the abstract class T says
#             that it is none of its subclasses, which is asked again after each registration
#             ("next has", name, T, obj) the bases after T hold this very object under the name, as super() looks it up
#             ("next lacks", name, T) they hold nothing there
#             ("of class", fn, value) fn(a type) == value, fn depending on nothing but what look-ups in the type find
#             ("calls", fn, value) fn() == value, whatever the parent: grad mode, autocast, default dtype, …
#             ("predicate", fn) fn(value) is true: for what is rare enough to check in Python
#   children  more nodes;  collect: append the value to the inputs, in order;  text: the source, e.g. "self.lin.weight"
GuardNode = tuple[
    tuple[Any, ...], tuple[tuple[Any, ...], ...], "tuple[GuardNode, ...]", bool, str
]  # (accessor, checks, children, collect, text)

# What must hold of sizes, once all in the tree does; expressions are encoded postfix code (`symbolic/postfix.py`):
#   readings     (place among the collected, "size" | "stride" | "number", dimension, text): symbols 0, 1, …
#   definitions  further symbols, computed from those before
#   facts        (expression that is not 0 where it holds, text)
SizeFacts = tuple[tuple[tuple[int, str, int, str], ...], tuple[bytes, ...], tuple[tuple[bytes, str], ...]]

class Guards:
    """A guard tree compiled to C structs. `distinct`: the collected values must all be different objects (numbers,
    strings and None apart).

    Once all has held twice, guards remember which words of memory that depends on: versions of dicts and classes, where
    things lie, what tensors are. While those are the same, only what they do not prove is looked at again.
    """

    def __init__(
        self, roots: tuple[GuardNode, ...], distinct: bool = False, sizes: SizeFacts | None = None
    ) -> None: ...
    @property
    def roots(self) -> tuple[GuardNode, ...]: ...
    @property
    def fast_path(self) -> tuple[int, int] | None:
        """How many facts (comparisons of memory) and questions the next `check` can do with; None before it knows."""
    def check(self, slots: Sequence[Any]) -> tuple[Any, ...] | None:
        """The collected values in tree order, or None if a check fails. Never raises for a failed access.

        `slots` is what `missed` got, with the function appended where the tree looks at it: `(*slots, function)`."""
    def explain(self, slots: Sequence[Any]) -> str | None:
        """The first check that fails, in words: source, what was expected, what was found. None if all hold."""

class Entry:
    """One compiled version of a frame: if `guards` hold, the frame's result is `run(*collected)`."""

    @overload
    def __init__(self, guards: Guards, run: Callable[..., Any]) -> None: ...
    @overload
    def __init__(
        self,
        guards: Guards,
        run: Callable[..., Any],
        arguments: tuple[int, ...],
        result: int | Callable[..., Any],
        failed: Callable[..., Any],
        restore: Callable[[], object] | None = None,
    ) -> None:
        """`run` is a graph: it gets those collected values that `arguments` number and yields several. The frame's
        result is the one with the number `result`, or `result(*all)`; if the graph raises an Exception, it is
        `failed(error, *collected)`. Whatever it raises, `restore()` is called, and again if it is interrupted."""
    @property
    def guards(self) -> Guards: ...
    @property
    def run(self) -> Callable[..., Any]: ...
    @property
    def hits(self) -> int: ...

class Region:
    """All that was compiled for one `smelt.compile`. While `call` runs, frames of this thread are looked up here.

    `missed(function, slots)` is asked for a frame that no entry fits: it returns an `Entry` to run (and keep), or None
    to run this frame in CPython; `never(code)` makes that answer final. `slots` are the frame's localsplus before its
    first instruction: arguments in place, no cell made yet (a captured argument is still the bare value), free
    variables NULL (they are in `function.__closure__`). Generators, coroutines, module and class bodies are never asked
    about. Guards, `missed` and compiled code run with no region active. Where the C stack runs low (deep recursion) the
    hook steps aside and CPython runs the frames below on its own.
    """

    def __init__(self, missed: Callable[[FunctionType, tuple[Any, ...]], Entry | None]) -> None: ...
    @property
    def missed(self) -> Callable[[FunctionType, tuple[Any, ...]], Entry | None]: ...
    pieces: int
    """How often frames were looked up here; whoever runs a plan that stops at a break adds one for each stop."""
    scattered: bool
    """Whether a call by `enter` was more or less than one piece: not one graph from start to end."""
    @staticmethod
    def on_trace(callable: Callable[[Callable[..., Any]], object], /) -> None:
        """Have `callable(function)` called, once in the process, by `enter` where a trace function is set."""

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` with this region active on the thread."""
    def enter(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """`call(function, *args, **kwargs)`."""
    def entries(self, code: CodeType) -> list[Entry]:
        """Oldest first, the order in which they are tried."""
    def add(self, code: CodeType, entry: Entry) -> None:
        """Keep an entry; adding one that is there already changes nothing."""
    def never(self, code: CodeType) -> None: ...
    def alone(self, code: CodeType) -> None:
        """Frames of this code and all that they call are for CPython, or for another tool."""
    def clear(self) -> None:
        """Forget every entry, every `never` and every `alone`."""
    @staticmethod
    def hold() -> None:
        """No region is or becomes active on this thread until `release`. Counts."""
    @staticmethod
    def release() -> None:
        """The end of `hold`."""
    @staticmethod
    def held() -> bool:
        """Whether this thread is between `hold` and `release`."""

def set_tensor_layout(
    *,
    base: type,
    body: int,
    rank: int,
    sizes: int,
    strides: int,
    kind: int,
    kind_masks: tuple[int, ...],
    gradient: int,
    plain: int,
    wanted: int,
    history: tuple[int, ...],
    dimensions: int,
) -> None:
    """Say where tensors keep what they are (see `smelt.torch_abi.tensor_layout`), so that guards can look there."""

def active() -> Region | None:
    """The region active on this thread, if any (None while compiled code or `missed` runs)."""

def suspended(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with no region active on this thread (`smelt.disable`, and the compiler itself)."""

def aside(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of smelt's own with no region active. Its frames do not count as the program's: where little is
    left of Python's recursion limit they are lent more, as guards, `missed` and compiled code are. What `suspended`,
    `resumed`, `Region.call` and `enter` call is the program's: it has as many frames left as before."""

def stack_left() -> int:
    """Bytes of C stack that are left on this thread; a very large number where that is not known."""

def resumed(region: Region, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with `region` active again: for user code that a graph break runs."""

def run_from(
    function: FunctionType,
    offset: int,
    slots: Sequence[Any],
    stack: Sequence[Any],
    handling: BaseException | None = None,
) -> Any:
    """Run `function`'s code in CPython from byte `offset`, with these localsplus and stack contents (`NULL` allowed).

    The region active now stays active. Past the function's first instructions, cell and free variables must be cells;
    NULL there means an empty cell or the function's own closure. Inside an exception handler, `handling` is the
    exception being handled (what a bare `raise` raises) and the stack holds what PUSH_EXC_INFO left there.
    ValueError: not an instruction (or between KW_NAMES and CALL, where the names would be lost), contents that do not
    fit the code, a generator. Beyond that the contents must be a state CPython itself could be in: it trusts the
    stack's depth and, from 3.12 on, that a LOAD_FAST finds its variable bound.
    """

def new_frame(function: FunctionType, offset: int, slots: Sequence[Any] | None = None) -> FrameType:
    """A frame object standing at `offset`, for building tracebacks; `slots` are what its f_locals show."""

def suspended_generator(
    function: FunctionType, next_offset: int, slots: Sequence[Any], stack: Sequence[Any]
) -> GeneratorType[Any, Any, Any]:
    """A generator of the function, suspended by the yield before `next_offset`, with these slots and this stack.

    As for `run_from`, they must be a state CPython itself could be in; what the yield returned is not on the stack.
    """

def class_version(kind: type) -> int:
    """A number that is another once look-ups in a class may find something else than before; 0 if it has none."""

def watch_operators(registrations: set[str], read: Callable[[set[str]], frozenset[str]]) -> None:
    """Say where replaced operators are registered, and what reads them there. `read` is called when the set has
    changed."""

def replaced_operators() -> frozenset[str]:
    """PyTorch's operators that the program replaced, as registrations ("aten/sin/CPU")."""

def hook_installed() -> bool:
    """Whether the frame hook is in place now: only while a region is active on some thread."""

def install_preserved_state(
    settings: tuple[tuple[tuple[Callable[..., Any], ...], Callable[..., Any], tuple[Any, ...]], ...],
    stacks: tuple[tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any]], ...],
    counters: tuple[tuple[Callable[[], Any], Callable[[], Any]], ...],
    hooks: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]] | None,
    locals: tuple[Any, ...],
    globals: tuple[tuple[dict[str, Any], tuple[str, ...], Callable[..., Any] | None], ...],
    guards: tuple[tuple[Callable[..., Any], Callable[[], Any] | None, bool], ...],
) -> None:
    """Say what `preserving_state` is to put back (`smelt.runtime.preserved_state` does). All functions are C functions.

    settings   (reads, write, arguments): write(*arguments, *values), where read(*arguments) are the values
    stacks     (length, item, pop, push)
    counters   (increment, decrement), both of which yield the number
    hooks      (top, pop, push) of a stack that only shows its top
    locals     thread-local objects, whose attributes are put back
    globals    (dict, names, write): flags by these names; write, if any, is given the last of them. All threads share
               them: where the first of the stacks is empty, they are put back to False
    guards     (make, read, twice): `make(read())`, entered, has an `__exit__` that puts back what was there before;
               twice: it is left at once, and then again
    """

def preserving_state(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call; however that ends, and wherever an exception arrives, PyTorch's state on this thread is as it was.

    The program's own code needs that state: handlers that it has for signals wait until then, save
    `signal.default_int_handler`, and there are no automatic collections, which run finalizers."""

def undoing(undo: Callable[[], object], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function`, then `undo()`, however that ends. An exception from outside may interrupt `undo`: it is called
    again, so it must do no harm to do it twice."""

def restoring(restore: Callable[[], object], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function`; if it raises, `restore()` as `undoing` does."""

def recorded(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with grad mode on, as `torch.enable_grad()` does, and put it back whatever is raised and wherever."""

def unrecorded(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same with grad mode off, as `torch.no_grad()` does."""

def offering_errors(function: Callable[[], Any], offer: Callable[[BaseException], bool]) -> Any:
    """Call `function`. What it raises is given to `offer`: if that is true, `function` is called again, else it is
    raised. So is what is raised on the way."""

def within(context: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` with `context` entered, whose `__enter__` and `__exit__` are C functions: no exception comes
    between them and the call."""

class Held:
    """`with Held(lock):` for a lock whose methods are in C: released whatever is raised and wherever."""

    def __init__(self, lock: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class PausedGC:
    """`with PausedGC():` no automatic collections of Python's cyclic collector inside.

    Importing and compiling make many long-lived objects and hardly any garbage, but enough of them to set off full
    collections, each of which walks all of PyTorch: 0.1 s for nothing, where a compilation takes as long. Modules stay
    for good, so what was made while some were loaded is told to be old at once: the collector would walk all of it as
    soon as it is on again, 10 ms after a first compilation. Nests, and leaves a collector that was off alone.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class AnyLauncher:
    """What `Runner` launches without Python. `launcher(threads, *tensors)` passes each tensor's `data_ptr()`."""

    def __call__(self, threads: int, *tensors: Any) -> None: ...

class ForwardCall:
    """A compiled graph without gradients as a function of its inputs: `run` with grad mode off while no transform,
    autocast or forward-mode differentiation is on, else `general`. autograd/forward_call.c says what each object is."""
    def __init__(self, **objects: Any) -> None: ...
    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...

class Launcher(AnyLauncher):
    """Calls `void kernel(void **buffers, int64_t threads, void *workspace)` at `address`, without the GIL.
    The workspace has `fixed + per_thread * threads` bytes, 64-byte aligned."""

    def __init__(self, address: int, buffers: int, fixed: int, per_thread: int) -> None: ...

# A number, or (slot,): one of the sizes that a launch is given.
GridSize = int | tuple[int]
# (function, blocks, threads of a block, bytes of shared memory, whether its warps wait for each other, and whether a
# recorded launch may begin before the one before it has ended)
GridPhase = tuple[int, GridSize, int, int, bool] | tuple[int, GridSize, int, int, bool, bool]

class CudaSupport(Protocol):
    """What a `GridLauncher` for CUDA asks Python for. It must not hold the launcher."""

    def functions(self, device: int, /) -> tuple[int, ...]:
        """The function of each phase, loaded on a device: asked once a device."""

    def stream(self, device: int, /) -> int:
        """The current stream of a device, where PyTorch's C function for it is not known."""

    def workspace(self, device: int, nbytes: int, /) -> Any:
        """A tensor of so many bytes, where PyTorch's C function has none; it raises if there is no memory."""

    def failed(self, code: int, phase: int, /) -> object:
        """Raise what a failed launch is to users, given the driver's error."""

class GridLauncher(AnyLauncher):
    """Launches a kernel that is phases of grids, one after the other.

    With `sizes`, the last buffer is an array of so many int64 on the host. The workspace has so many bytes, in the
    memory that the kernel works on. `warp`: threads that run as one.

    Without `support` phases are functions of the host, `void f(void **buffers, void *workspace, int64_t block, int64_t
    warp, void *shared)`, called for each warp of each block in the order of `set_simt_order`. Phases with barriers run
    their warps as fibers, which take turns at `smelt_simt_barrier`. Shared memory and the workspace are filled with
    0xFF first. A launch fails if warps end while others of their block wait, or write beyond their shared memory.

    With it they are launched by CUDA on PyTorch's current stream of the device that the first buffer is on, or of
    `device`; those of phases are then 0. Parameters: the buffers, the workspace, the sizes. `numbers`, a byte for each
    buffer: 0, or how many bytes a number has that is in the host's memory; its parameter is the number itself.

    Where a buffer does not begin at a multiple of `alignment` bytes, the launcher that `unaligned()` returns is used.
    """

    def __init__(
        self,
        phases: tuple[GridPhase, ...],
        buffers: int,
        workspace: GridSize,
        *,
        sizes: int = 0,
        warp: int = 32,
        support: CudaSupport | None = None,
        device: int = -1,
        alignment: int = 1,
        unaligned: Callable[[], AnyLauncher] | None = None,
        numbers: bytes = b"",
    ) -> None: ...
    @property
    def phases(self) -> int:
        """How many grids it launches."""

def simt_barrier_address() -> int:
    """The address of the function that warps on the host call to wait for each other, for generated code."""

def set_simt_order(order: Literal["forward", "reverse", "shuffled"], seed: int = 0, /) -> None:
    """In which order blocks, and the warps of each between two barriers, run on the host: a missing barrier shows in
    one of them. For tests; no grid may be running."""

def free_cuda_graphs() -> int:
    """Free the CUDA graphs of all programs that are not running, and their memory: how many there were."""

def set_cuda_library(functions: dict[str, int], /) -> None:
    """Say where PyTorch's C functions for CUDA are (`smelt.torch_abi.cuda_shims` finds out): the current stream, and
    raw memory of the caching allocator. What is missing is asked of `CudaSupport`."""

class CudaError(RuntimeError):
    """A function of the CUDA driver failed."""

    code: int
    text: str  # the driver's own words for it
    log: str  # what the assembler printed

def cuda_open(path: str, /) -> int:
    """Open the CUDA driver: its version, 12040 for 12.4. OSError: there is none, or it lacks a function."""

def cuda_device_names() -> list[str]:
    """What each GPU that the driver sees is called, in its order."""

def cuda_attribute(device: int, attribute: int, /) -> int:
    """What the driver says of a GPU, by the number that its manual gives the question."""

def cuda_new_stream(device: int, /) -> int:
    """The driver's handle of a new stream that does not wait for the default one. It is never destroyed."""

def cuda_error_text(code: int, /) -> str:
    """The driver's own words for an error."""

def cuda_link(ptx: bytes, device: int, /) -> tuple[bytes, str]:
    """PTX as machine code for a device, and what the assembler printed."""

class CudaModule:
    """Machine code, or PTX that ends with a zero, in the memory of a GPU until this object (or the process) ends."""

    def __init__(self, image: bytes, device: int) -> None: ...
    @property
    def device(self) -> int: ...
    def function(self, name: str, shared_bytes: int = 0, /) -> int:
        """What `cuLaunchKernel` takes, allowed so much dynamic shared memory."""

    def usage(self, name: str, threads: int, shared_bytes: int, /) -> tuple[int, int, int, int]:
        """Registers, bytes of local memory per thread and of static shared memory per block of a function, and how many
        of its blocks one multiprocessor runs at once, with so many threads and so much dynamic shared memory."""

def checksum(data: Any, /) -> int:
    """XXH64 (seed 0) of the bytes of a buffer, which the sections of an artifact's file are held against."""

def sign(secret: bytes, data: Any, is_weights: bool = ..., /) -> bytes: ...  # the record that a signed file ends with
def read_sections(data: Any, is_artifact: bool, /) -> bytes:
    """The directory of a file (`ir.artifact_file.layout.SectionRecord`); a ValueError that says what is wrong with it.
    `is_artifact`: it has the sections of an artifact, in their order."""

def evaluate(code: bytes, symbols: bytes, /) -> int | None:
    """Of postfix code (`symbolic.postfix.encode`) over symbols of 64 bits; None if it overflows or divides by zero."""

def check_table(table: bytes | memoryview, weights: int, state: int, kernels: int, /) -> None:
    """A ValueError that says what is wrong with a table of an artifact that has so many bytes of weights and of state,
    and code of so many kernels."""

def plan_table(
    table: bytes | memoryview, weights: int, state: int, kernels: int, /
) -> tuple[int, tuple[bytes | None, ...]]:
    """Checks the table in the same way. Returns how many bytes the arrays of a run take, and of each variant its plan
    (`Plan` of csrc/executor/run/parts.h), or None if sizes or values of a call decide on it."""

class StepClock(Protocol):
    """The clock of a device that is at work when a step has returned, for one call of a program."""

    def after(self) -> object:
        """Called after each step."""

    def end(self, times: tuple[int, ...], /) -> tuple[int, ...]:
        """What the steps took in nanoseconds, given what the host's clock says."""

class GraphSide(Protocol):
    """A CUDA graph that is being recorded: its stream is current, and its memory is allocated."""

    @property
    def stream(self) -> int: ...
    @property
    def memory(self) -> object:
        """Keeps what is allocated meanwhile. The graph has it as long as it is there."""

    def end(self) -> object: ...

class GraphRecorder(Protocol):
    """What recording takes of Python. `always`: also programs whose graphs take much memory, or do not pay."""

    @property
    def always(self) -> bool: ...
    def begin(self, device: int, /) -> GraphSide | None: ...
    @property
    def questions(self) -> tuple[tuple[Callable[..., object], tuple[Any, ...]], ...]:
        """Functions, and what to call them with: recorded calls keep the settings of PyTorch that they answer with. One
        that raises a RuntimeError answers with nothing."""

class Runner:
    """A program as one call: `runner(*inputs)` does its steps in order and returns its results.

    `table` is a flat program (`smelt.ir.table`), `objects` what it refers to: its constants first, then kernels,
    functions and whatever else is Python's. A table that is cut, or refers to what is not there, is refused with a
    ValueError. Sizes must fit what the kernels were built for: that is not checked, but for programs with `sizes`.

    Tensors are values with numbers: the inputs, the constants, what steps make, then what the list holds that
    `acquire()` returns and that goes back by `release(list)`. A consuming program is given its inputs in a list, which
    it empties.

    The GIL is released from the first step to the last of a program without `python_steps`, and while kernels and
    native calls of any other run. Python does what native code does not: `allocate(sizes, strides, dtype, device)`,
    `view(tensor, sizes, strides, offset)`, `fit(tensor, sizes, strides, dtype, name)` return tensors, `threads()` a
    number. It does all but the kernels where one of `watchers` returns something true, where `set_library` was never
    called, and where an input is not a plain tensor or parameter. `smelt_step` of what is raised says which step did.

    With a `recorder`, a program on a GPU whose calls repeat becomes CUDA graphs: `graphs` says how many there are, how
    often they were launched, how many of their nodes depend on addresses, how many were patched and how long the host
    took in all launches, and why the last call was done step by step.
    """

    def __init__(
        self, table: bytes, objects: tuple[Any, ...], *, threads: Callable[[], int], acquire: Callable[[], list[Any]],
        release: Callable[[Any], object], allocate: Callable[..., Any], view: Callable[..., Any],
        fit: Callable[..., Any], watchers: tuple[Callable[[], object], ...], recorder: GraphRecorder | None = None,
        sizes: tuple[Any, ...] | None = None,  # written by pipeline/sizes/runner_sizes.py
    ) -> None: ...
    def fits(self, *inputs: Any) -> bool: ...  # whether the facts of `sizes` hold; else a call raises a ValueError
    @property
    def graphs(self) -> dict[str, Any]: ...
    @property
    def table(self) -> bytes: ...
    @property
    def objects(self) -> tuple[Any, ...]: ...
    @property
    def python_steps(self) -> int:
        """How many steps only Python can do."""

    @property
    def gil_acquisitions(self) -> int:
        """How often the GIL was acquired between the first step and the last, in all calls so far."""

    @property
    def times(self) -> tuple[int, tuple[int, ...]]:
        """How many calls were timed, and the nanoseconds each step took in all of them; (0, ()) if none is."""

    def time(self, on: bool | Callable[[], StepClock], /) -> None:
        """Note from now on how long each step takes, beginning at zero; or no more, which costs nothing. A callable is
        asked for a clock before each call."""

    def begin(self, inputs: list[Any], /) -> PausedRun:
        """Begin a call of a consuming program that pauses between steps: the list is emptied, no step is done."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...

class PausedRun:
    """A call that stops between steps. One that is dropped before its last step frees everything, as after an error."""

    def advance(self, until: int, places: tuple[int, ...], /) -> tuple[Any, ...]:
        """Do the steps up to `until`, and return the results at these places. Their values are dropped: no later step
        may use them, and results of one value leave together. The last step, or an error, ends the call."""

def set_library(
    tensor: type, parameter: type, body: int, storage: int, memory: tuple[int, int, int], functions: dict[str, int], /
) -> None:
    """Say where PyTorch's C interface lies (`smelt.torch_abi.aoti_shims` finds out): addresses by name, how many bytes
    into the objects of these two classes the tensor is that the interface takes the address of, and how many into what
    that points to its storage is pointed to (0: not known). `memory`: how many bytes into a storage the address of its
    memory is, the number of its bytes, and whether PyTorch allocated it (0: not known)."""

def storages(tensors: list[Any] | tuple[Any, ...], /) -> bytes | None:
    """Which memory each of these tensors lies in, a word each: a tensor that was given other memory has another word,
    one whose memory has grown or was filled anew has the same. None where `set_library` did not say where to look."""

def overlap(tensors: list[Any] | tuple[Any, ...], written: tuple[int, ...], /) -> int | None:
    """Whether one of the `written` overlaps another of these: 0 no, 1 yes, 2 and 3 see `smelt.runtime.overlap`."""

class Code:
    """An image of machine code in executable memory, which goes with this object.

    Each of `slots` is four words, as a slot of an artifact's file has them: the place of eight bytes of the image that
    get a value, 0, whether the value does not count from the image's own address, and the value. The rest of the image
    does not depend on where it lies, beyond being page-aligned.
    """

    def __init__(self, image: bytes, slots: bytes) -> None: ...
    @property
    def address(self) -> int: ...

def parallel_for_address(parallel: int, thread: int, threads: int, /) -> int:
    """The address of the function that shares a kernel's points out between threads, for generated code to call.

    It uses these functions from then on, for all code: GOMP_parallel, omp_get_thread_num and omp_get_num_threads; with
    a 0 among them, no other thread.
    """

def set_node_layout(
    python_base: type, wrapped: int, python_wrapped: int, sequence: int, edges: int, edge_size: int, edge_input: int,
    pre: int, tensor_pre: int, retained: int, post: int, inputs: int, input_size: int, options: int, shape: int,
    shape_kind: int, release: int, pre_class: int, tensor_pre_class: int, post_class: int, body: int, record: int,
    leaf_pre: int, leaf_post: int, leaf_post_class: int,
) -> None:  # fmt: skip
    """Say where nodes of autograd's graph keep what they are: byte offsets, the place of `release_variables` in the
    tables of their classes, and the tables of those hooks that hold a dict of Python functions."""

def set_node_stream(offset: int, /) -> None:
    """Say where an input of a node keeps the number of the stream that was current when the node was made: it is part
    of what `read_graph` returns from then on. 0: it is not known."""

def read_graph(
    roots: tuple[Any, ...],
    kinds: dict[type, tuple[Any, ...]],
    learn: Callable[[Any], tuple[Any, ...]],
    exactly: Callable[[Any], Any],
    describe: Callable[[Any], Any],
    number: Callable[[Any], Any],
    /,
) -> tuple[list[Any], bytes, list[Any], bytes, int, list[Any], list[int]] | str:
    """All that a backward from these nodes depends on; a text says why it cannot be read.

    Yields the nodes, roots first; words and values that are equal for graphs that are alike; the nodes' addresses;
    whether any has hooks; the tensors they saved; the numbers of those that are for Python to look at.

    The words are the numbers of the roots; per node its class, how many hooks it has, its inputs (options, rank, sizes)
    and edges (number of the node + 1 and of its input, or 0); then the numbers of all nodes, oldest first; then the
    layouts of leaves and of saved tensors.

    `kinds` says per class of nodes (0 a leaf | 1 read what it saved | 2 for Python, names of attributes with plain
    values, with tensors, one that tells whether hooks packed them or None); `learn(node)` is asked for a new class;
    `exactly` makes a value comparable that is no integer; `describe` a tensor that memory does not tell of;
    `number` says of a tensor without dimensions what of its value matters."""

def node_hooks(address: int, /) -> tuple[list[tuple[str, Any, int]], int]:
    """The hooks of a node: (kind, dict of Python functions or None, which gradient it is for); and how many of its
    results retain their gradient."""

def leaf_hooks(leaf: Any, /) -> list[tuple[str, Any, int]]:
    """The hooks of a leaf, in the same way: on its gradient, and on what was added up."""

def outline_graph(root: Any, first: int, /) -> tuple[bytes, bytes, list[Any]] | None:
    """The shape of autograd's graph behind a node as words: classes, edges, inputs, and how many nodes were made since
    the one numbered `first`; then addresses of the nodes, and the nodes. None: one is older, hooked or Python's."""

def release_nodes(addresses: bytes, /) -> None:
    """Free what nodes saved, as the engine does after a backward that does not retain the graph."""

def accumulate_grads(
    nodes: list[Any],
    values: list[Any],
    places: tuple[tuple[int, int, bool], ...],
    otherwise: Callable[[Any, Any, bool], None],
    /,
) -> None:
    """Give leaves their gradients, in order: (number of the leaf's node, place of the gradient among the values,
    whether that is its last use, so that it can be let go there).
    What is not plain goes to `otherwise(leaf, gradient, owned)`; owned: nobody else has the gradient. Plain is a first
    one that is owned, no view and lies row-major as the leaf does, and one to be added to a gradient like it."""

# --- tensors of a device of our own, and recording what is done to them (`dispatch/`, `lazy/`) ---

class DeviceMemory:
    """What stands behind a storage of a device of our own: the storage's address of data is the memory's address."""

def set_storage_layout(address: int, size: int, context: int, release: int, /) -> None:
    """Say how many bytes into a storage the address and the size of its memory are, and the function that frees it and
    what that is called with; zeros for what is not known."""

def place_device_memory(tensor: object, memory: DeviceMemory, size: int, /) -> None:
    """Give the storage of a new tensor its memory, the memory's address, and a size in bytes."""

class DeviceTypeAnswer:
    def __init__(self, device_type: object, /) -> None:
        """Returns a device type when it is called, also while an exception is set. An attribute of a class."""

class RecordingLock:
    """A lock that its thread may take again."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def reads_storages() -> bool:
    """Whether it is known where tensors and storages keep the address and the size of their memory."""

def device_memory_of(tensor: object) -> DeviceMemory | None:
    """What stands behind the storage of a tensor; None where that cannot be read, or is nothing of ours."""

def device_memory_at(address: int) -> DeviceMemory | None:
    """The memory at an address; None if none lives there."""

def leave_accelerator() -> bool:
    """Let PyTorch take its GPU for the accelerator of the process, and the device of our own for none, from now on.
    False where libtorch's calls cannot be redirected: nothing has changed then."""

class LazyMemory(DeviceMemory):
    """What is behind the storage of a lazy tensor, and which values of a recording are views of it. A layout is (shape,
    strides, offset, dtype)."""

    layout: Any
    real: Any
    lost: BaseException | None
    @property
    def serial(self) -> int: ...
    def __new__(cls, layout: Any, real: Any = None) -> Self: ...
    def enter(self, serial: int, value: int) -> None:
        """Become a value of the recording with this serial."""

    def see(self, layout: Any, value: int) -> None:
        """A view with this layout has this value, unless one has."""

    def find(self, layout: Any) -> int | None:
        """The value of the view with this layout."""

    def seen(self) -> tuple[tuple[Any, int], ...]:
        """The layouts of its views with their values; the first is that of the whole."""

class Step:
    """One recorded call, or an input, and the calls that have followed it; see `lazy/steps.py`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Any, ...]
    form: type | None
    layout: Any
    line: Any
    values: int
    numbers: int
    programs: dict[Any, Any]
    backwards: dict[Any, Any] | None
    launch: Any
    constants: dict[int, Any] | None
    @property
    def before(self) -> Any: ...
    @property
    def operator(self) -> Any: ...
    @property
    def after(self) -> dict[Any, Any]: ...
    @property
    def first_value(self) -> int: ...
    def __new__(cls, before: Any, operator: Any = None) -> Self: ...

class Recording:
    """What was recorded since the last run: the step it stands at, and what is beside the tree."""

    step: Any
    count: int
    bytes: int
    first_node: int  # the number of autograd's next node when the recording began
    trail: int  # between which recorded calls autograd made nodes, as a hash
    is_trail_lost: bool
    @property
    def serial(self) -> int: ...
    @property
    def numbers(self) -> list[Any]: ...
    @property
    def inputs(self) -> list[Any]: ...
    def __new__(cls, serial: int, root: Step) -> Self: ...
    def watch(self, value: int, memory: LazyMemory) -> None:
        """A value is all of a memory that is new in this recording."""

    def alive(self) -> list[tuple[int, Any]]:
        """The memories that are watched and live, with their values."""

def watch_nodes(address: int, saving_hooks: Callable[[bool], Any], /) -> None:
    """The function at `address` returns the number that the thread's next node of autograd's graph will have;
    `saving_hooks(True)` the hooks that pack what nodes save, or None."""

def saved_values(
    recorder: LazyRecorder, nodes: list[Any], known: dict[type, Any], learn: Callable[[Any], tuple[str, ...]], /
) -> bytes | None:
    """Which values nodes have as attributes, as words; `learn` names those of a class. None: one is none, or gone."""

class LazyBackward:
    """A backward whose operators were recorded before, taken as a whole.

    `end` is the step after it, `numbers` are those before it and `added` those that it adds, as it adds `count`
    operators and `bytes` of results. `memories` of gradients are (value, what `seen` returned). `leaves` are (weak
    reference, number of the node, place of the memory, layout of the gradient); `addresses` those of the nodes."""

    def __new__(
        cls, *, end: Step, numbers: tuple[Any, ...], added: tuple[Any, ...], count: int, bytes: int,
        memories: tuple[tuple[int, tuple[tuple[Any, int], ...]], ...], leaves: tuple[tuple[Any, int, int, Any], ...],
        addresses: bytes,
    ) -> Self: ...  # fmt: skip
    def run(self, recorder: LazyRecorder, addresses: bytes, /) -> bool | None:
        """Record it, and give the leaves their gradients. With nothing done, None: other leaves, or hooks;
        False: a leaf has a gradient, or a number differs."""

class LazyLaunch:
    """The program of a path that recurs, run without Python between the recording and the program.

    `outputs`: how many values are alive. `call` takes the inputs of the recording, then tensors that `scalar` makes of
    the numbers at the places `scalars`; of what it returns, `results` are the values `live`. By `leaders`, a number is
    as in `numbers` (-1), any of its type (-2), or equal to the one at a place. `adopt(result, memory)` makes a result
    fit that is laid out otherwise than recorded."""

    outputs: int
    def __new__(
        cls, *, call: Callable[..., Any], inputs: int, numbers: tuple[Any, ...], leaders: tuple[int, ...],
        scalars: tuple[int, ...], live: tuple[int, ...], results: tuple[int, ...], scalar: Callable[[Any], Any],
        adopt: Callable[[Any, Any], Any],
    ) -> Self: ...  # fmt: skip
    def run(self, recording: Recording, /) -> bool:
        """Run a recording that has recurred; False, with nothing done, for any other."""

class RecordedOperator:
    """One overload, as recording needs it; `kinds` has a byte for each argument. With a `zero`, calls where this
    argument is not 0.0, its default, draw random numbers."""

    def __init__(
        self, *, known: object, names: tuple[str, ...], kinds: bytes, writes: bool, is_view: bool,
        zero: str | None = None,
    ) -> None: ...  # fmt: skip
    @property
    def has_zero(self) -> bool: ...

class LazyRecorder:
    """Records calls. A subclass has the methods that are asked for what is rare: `plain_dtype`, `enter`, `value_of`,
    `read`, `check_bits`, `make_step`, `new`, `new_view`."""

    now: Recording
    most_operators: int
    most_bytes: int
    @property
    def lock(self) -> RecordingLock: ...
    def connect(
        self, *, now: Recording, refs: list[Any], lock: RecordingLock, tensor_class: type,
        memory_class: type[LazyMemory], create: Callable[..., Any] | None, declined: tuple[type[Exception], ...],
    ) -> None:  # fmt: skip
        """Say what calls are recorded with. `create` makes a tensor of the device, of a shape and a dtype; `declined`
        are the errors that mean that a call cannot be recorded as it came."""

    def record_call(self, operator: RecordedOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call, and return what it returns."""

class LazyKernel:
    """What PyTorch's dispatcher calls for one operator. `owner` has `find`, `call`, `declined` and `run_full`; see
    `lazy/owner.py`."""

    def __init__(self, recorder: LazyRecorder, owner: object, name: str) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
