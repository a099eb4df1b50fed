"""`Chip`: all that a new device brings. Operators, gradients, optimizers and fused graphs follow from the compiler.

    class Abacus(Chip):
        def describe(self): ...      what it is, as a `Target`
        def allocate(self, nbytes): ...      an address; and free, copies, compile, launch: twelve methods in all

    smelt.register_chip("abacus", Abacus())
    x = torch.randn(3, device="abacus")

**Memory.** An address is an integer that only the chip understands, never 0. An address plus a number of bytes inside
of its allocation is an address, too, and may be given to every method but `free`. Allocations begin at multiples of 64.

**Order.** What is asked of a chip happens in the order in which it was asked, as on one queue. Methods may return
before it has happened, but for `copy_out`, `synchronize` and `wait_event`. smelt calls one method at a time.

**Kernels.** `compile` is given a `KernelModule`: code in the form that the chip's `Target.form` names, with one or more
functions in it. `launch` runs one of them by its name. How its arguments are passed depends on `Target.warp_size`:

    1          a chip whose kernel is one function that does everything, as a processor's:

                   void symbol(void **buffers, int64_t threads, void *workspace)

               `buffers` has the chip's own pointer to each of `Launch.buffers`, in order, then, where `Launch.sizes`
               has any, a pointer to an array of these as int64. For a buffer that `Launch.numbers` names it has a
               pointer to eight bytes with these bits. `threads` is 1, and `workspace` the chip's own pointer to
               `Launch.workspace`. The grid is (1, 1, 0).

    more       a chip with grids of blocks of threads, `warp_size` of which run in step. Parameters of a function, in
               order: each of `Launch.buffers` (a pointer to the chip's global memory), the workspace (such a pointer),
               each of `Launch.sizes` (int64). For a buffer that `Launch.numbers` names, the parameter is these bits
               themselves. In SPIR-V, which is Vulkan's with addresses of memory
               (PhysicalStorageBuffer64), they are push constants of 64 bits: the number of the first block, which
               is 0 unless the chip takes a grid in pieces, then the parameters; of more than 15 parameters there is
               the address of an array of them. Addresses, not bindings: kernels have more buffers than many drivers
               have bindings for, and a tensor may begin at any byte of an allocation.

Where nothing is kept in a workspace, its address is 0.

**Errors.** `allocate` raises `MemoryError` where there is no room; any method raises `ChipLost` once the device is
gone. What else a method raises is passed on to the program. An error of something that was asked for earlier may be
raised by any later method."""

from typing import Any, Protocol

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.device.target import Target

MOST_METHODS = 20
"""A chip never has to bring more."""


class ChipLost(SmeltError):
    """The device does not answer any more: all that was in its memory is gone."""

    def __init__(self, message: str) -> None:
        super().__init__("SM071", message, hint="start the process again; torch.save what you need from the host")


@dataclass(frozen=True, slots=True)
class KernelModule:
    """Code to be compiled. `symbols` are the functions that are launched."""

    form: str  # "llvm": `code` is LLVM's text, a str; "spirv": bytes for each symbol
    code: Any
    symbols: tuple[str, ...]
    name: str = ""  # for people: of the program whose kernels these are


@dataclass(frozen=True, slots=True)
class Grid:
    """How many blocks run a function, of how many threads each, with how much memory that a block shares."""

    blocks: int = 1
    threads: int = 1
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one function."""

    symbol: str
    buffers: tuple[int, ...]  # addresses
    sizes: tuple[int, ...] = ()  # 64 bits each
    workspace: int = 0  # an address
    grid: Grid = Grid()
    # Those of the buffers, by place, that are a number of the host's, with its bits; their address is 0.
    numbers: tuple[tuple[int, int], ...] = ()


def _not_brought(chip: object, method: str) -> NotImplementedError:
    return NotImplementedError(f"{type(chip).__name__} has no {method}()")


class Chip(Protocol):
    """A device. A class that names this one as its base has the defaults of the optional methods;
    the others raise until they are written."""

    survives_fork: bool = False
    """Whether a forked process may use its copy of this object. If not, its calls raise an error that says so."""

    def describe(self) -> Target:
        """What it is: the form of its kernels, widths, dtypes, limits. Asked once."""
        raise _not_brought(self, "describe")

    # Memory.

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, of which nothing is known. `nbytes` is more than 0."""
        raise _not_brought(self, "allocate")

    def free(self, address: int) -> None:
        """Give memory back. What was asked for before may still use it, what is asked for later will not."""
        raise _not_brought(self, "free")

    def copy_in(self, address: int, data: memoryview) -> None:
        """From the host. The caller may change `data`, which is bytes, as soon as this returns."""
        raise _not_brought(self, "copy_in")

    def copy_out(self, address: int, data: memoryview) -> None:
        """To the host: `data`, which is bytes, is filled when this returns."""
        raise _not_brought(self, "copy_out")

    def copy_within(self, address: int, source: int, nbytes: int) -> None:
        """From one place of its memory to another; they do not overlap."""
        raise _not_brought(self, "copy_within")

    # The queue.

    def synchronize(self) -> None:
        """Wait until everything that was asked for is done."""
        raise _not_brought(self, "synchronize")

    def record_event(self) -> Any:
        """An event that happens when everything that was asked for so far is done."""
        raise _not_brought(self, "record_event")

    def wait_event(self, event: Any) -> None:
        """Wait until an event has happened."""
        raise _not_brought(self, "wait_event")

    def query_event(self, event: Any) -> bool:
        """Whether an event has happened."""
        raise _not_brought(self, "query_event")

    # Kernels.

    def compile(self, module: KernelModule) -> Any:
        """A handle by which the functions of a module are launched; it is dropped when nobody needs them any more."""
        raise _not_brought(self, "compile")

    def launch(self, handle: Any, launch: Launch) -> None:
        """Run a function of a compiled module."""
        raise _not_brought(self, "launch")

    # Optional: what the chip does better than generated kernels. NotImplemented: the kernels do it.

    def matmul(self, result: int, a: int, b: int, batch: int, rows: int, inner: int, cols: int, dtype: str) -> Any:
        """`batch` products of contiguous matrices, rows × inner by inner × cols; `dtype` as in "float32"."""
        return NotImplemented

    def random_fill(self, address: int, count: int, distribution: str, seed: int) -> Any:
        """`count` float32 numbers, "uniform" in [0, 1) or "normal", that depend on the seed alone. By default numbers
        are drawn by the host as it draws its own."""
        return NotImplemented


OPTIONAL = ("matmul", "random_fill")


def methods() -> tuple[str, ...]:
    """The names of the protocol's methods."""
    return tuple(name for name, value in vars(Chip).items() if callable(value) and not name.startswith("_"))


def offers(chip: object, name: str) -> bool:
    """Whether a chip has an optional method of its own."""
    own = getattr(type(chip), name, None)
    return own is not None and own is not vars(Chip)[name]


def why_not_chip(chip: object) -> str | None:
    """What an object lacks to be a chip; None if it has everything."""
    missing = [name for name in methods() if name not in OPTIONAL and not callable(getattr(chip, name, None))]
    return f"{type(chip).__name__} has no {', '.join(missing)}" if missing else None
