"""`Simt`: a `Builder` with the primitives that GPU schedules use.

    n = b.thread()                     which thread of its block this is
    x = b.load_global(pointer, n, "f32")      of global memory; `width` elements side by side at once
    y = b.shuffle_xor(x, 16)           what the lane that differs in this bit has
    b.barrier()                        all threads of the block have come here

Two lowerings implement them. `nvptx.Nvptx`: the text is that of one thread. `host.HostWarp`: the text is that of one
warp; a value that differs between threads is a vector with a lane per thread. So a schedule is written once, as
straight-line code: whole warps take branches, loops run equally often in all threads, and stores by some threads only
are under `where`. A thread without a point of its own computes the first point and stores nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smelt.codegen.llvm.builder import BITS, LLVM_TYPES, Builder, LlvmValue, Number, type_text
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target
from smelt.symbolic.symsize import is_symsize

Mask = LlvmValue | None  # None: all threads
GLOBAL = "ptr addrspace(1)"
MOST_BYTES = 16  # of one access
_ATOMIC = 'syncscope("device") monotonic'  # nothing else is said to other threads by it
Change = Callable[[LlvmValue, LlvmValue], LlvmValue]  # an element, as it is in memory, and a value → the element then


class Simt(Builder, ABC):
    """Code of one phase of a grid."""

    warp: int  # threads that run in step

    def __init__(self, target: Target, symbol: str, sizes: Sizes, index_kind: str, cluster: int = 1) -> None:
        super().__init__(target, symbol, sizes)
        self.cluster = cluster  # blocks that run at the same time, and read each other's shared memory
        self.index_kind = index_kind  # of positions and counts: i32 where all of them fit
        self.shared_bytes = 0
        self._exchange: int | None = None  # where the memory begins that is used again
        self.has_barrier = False

    # Where this is.

    @abstractmethod
    def lane(self) -> LlvmValue:
        """Which thread of its warp this is."""

    @abstractmethod
    def warp_number(self) -> LlvmValue:
        """Which warp of its block this is."""

    @abstractmethod
    def block_number(self) -> LlvmValue:
        """Which block of the grid this is."""

    def thread(self) -> LlvmValue:
        """Which thread of its block this is."""
        return self.add(self.mul(self.warp_number(), self.warp), self.lane())

    def cluster_rank(self) -> LlvmValue:
        """Which block of its cluster this is."""
        return self.and_(self.block_number(), self.cluster - 1)

    def index(self, number: Number) -> LlvmValue:
        """A count or position."""
        return self.const("i64" if is_symsize(number) else self.index_kind, number)

    # Memory.

    @abstractmethod
    def parameter(self, number: int) -> str:
        """The address of a buffer, by its place among the kernel's parameters."""

    @abstractmethod
    def number(self, parameter: str, kind: str) -> LlvmValue:
        """The value of a one-element buffer on the host, passed as its `parameter`."""

    @abstractmethod
    def workspace(self, offset: int) -> str:
        """An address of the memory that the phases of a launch share."""

    @abstractmethod
    def load_global(
        self, pointer: str, at: LlvmValue, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[LlvmValue]:
        """`width` elements from `at` on. `aligned`: their address is a multiple of their size. `constant`: nobody
        writes there while the phase runs."""

    @abstractmethod
    def store_global(self, pointer: str, at: LlvmValue, values: Sequence[LlvmValue], *, aligned: bool = True) -> None:
        """Elements side by side, from `at` on."""

    @abstractmethod
    def atomic(
        self, pointer: str, at: LlvmValue, kind: str, value: LlvmValue, change: Change, plain: str | None = None
    ) -> None:
        """An element becomes what `change` makes of it and `value`, and no other thread changes it meanwhile. Threads
        come in any order. `plain`: what LLVM's `atomicrmw` calls this, where it has a name for it."""

    @abstractmethod
    @contextmanager
    def where(self, mask: Mask) -> Iterator[None]:
        """Within, only threads of the mask store."""

    @contextmanager
    def where_stored(self, mask: Mask) -> Iterator[None]:
        """The same where stores to global memory are all there is within."""
        with self.where(mask):
            yield

    # Exchange between the threads of a warp and of a block.

    @abstractmethod
    def shuffle_xor(self, value: LlvmValue, distance: int) -> LlvmValue:
        """The value of the lane whose number differs in the bit `distance`."""

    @abstractmethod
    def shuffle_up(self, value: LlvmValue, distance: int) -> LlvmValue:
        """The value of the lane `distance` before this one; any value for the first ones."""

    @abstractmethod
    def shuffle_from(self, value: LlvmValue, lane: LlvmValue) -> LlvmValue:
        """The value of the lane with this number."""

    @abstractmethod
    def barrier(self) -> None:
        """What any thread of the block stored before it, every thread may load after it."""

    @abstractmethod
    def warp_barrier(self) -> None:
        """The same for the threads of a warp."""

    @abstractmethod
    def cluster_barrier(self) -> None:
        """The same for the threads of all blocks of a cluster and their shared memory."""

    @abstractmethod
    def leave_cluster(self) -> None:
        """At the end: no block of a cluster is gone while another reads its shared memory."""

    def shared_array(self, kind: str, length: int) -> int:
        """Room for elements that the threads of a block share: its first byte."""
        size = memory_bytes(kind)
        first = -(-self.shared_bytes // 16) * 16
        self.shared_bytes = first + size * length
        return first

    def exchange_array(self, size: int) -> int:
        """So many bytes to share for a while: the next who asks gets the same ones."""
        if self._exchange is None:
            self._exchange = self.shared_array("i8", 0)
        else:
            self.barrier()  # all have loaded what was there before
        self.shared_bytes = max(self.shared_bytes, self._exchange + size)
        return self._exchange

    @abstractmethod
    def load_shared(self, first: int, at: LlvmValue, kind: str) -> LlvmValue:
        """An element of a `shared_array`."""

    def load_shared_vector(self, first: int, at: LlvmValue, kind: str, width: int) -> list[LlvmValue]:
        """Elements side by side, from one on whose address is a multiple of their size, or of sixteen bytes."""
        return [self.load_shared(first, self.add(at, way) if way else at, kind) for way in range(width)]

    @abstractmethod
    def load_cluster(self, first: int, rank: LlvmValue, kind: str) -> LlvmValue:
        """The first element of a `shared_array` of another block of this cluster."""

    @abstractmethod
    def store_shared(self, first: int, at: LlvmValue, value: LlvmValue) -> None:
        """Under `where`, by the threads of its mask."""

    # The function.

    @abstractmethod
    def function(self) -> str:
        """All that was written, as the text of a function."""


class OneThread(Simt):
    """Code of one phase that is the text of one thread, with addresses of global memory."""

    most_lanes = MOST_BYTES  # elements of one access

    def __init__(
        self,
        target: Target,
        symbol: str,
        sizes: Sizes,
        index_kind: str,
        cluster: int = 1,
        *,
        buffers: int,
        threads: int,
    ) -> None:
        super().__init__(target, symbol, sizes, index_kind, cluster)
        self.buffers = buffers
        self.threads = threads
        self.numbers: set[str] = set()  # parameters that are no addresses

    # Memory.

    def runtime_param(self, number: Number) -> LlvmValue:
        assert self.sizes is not None
        return LlvmValue(f"%size{self.sizes.slot(number)}", "i64")

    def parameter(self, number: int) -> str:
        return f"%b{number}"

    def number(self, parameter: str, kind: str) -> LlvmValue:
        self.numbers.add(parameter)
        whole = self.convert("trunc", LlvmValue(parameter, "i64"), f"i{8 * memory_bytes(kind)}")
        return self._back(whole, kind)

    def _taken(self, number: int) -> str:
        """The type of a parameter."""
        return "i64" if self.parameter(number) in self.numbers else GLOBAL

    def workspace(self, offset: int) -> str:
        if not is_symsize(offset) and not offset:
            return "%workspace"
        return self._address("%workspace", "i8", self.const("i64", offset), GLOBAL)

    def _address(self, pointer: str, kind: str, at: LlvmValue, space: str) -> str:
        name = self.fresh("p")
        self.emit(f"{name} = getelementptr {LLVM_TYPES[kind]}, {space} {pointer}, {at}")
        return name

    def load_global(
        self, pointer: str, at: LlvmValue, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[LlvmValue]:
        size = memory_bytes(kind)
        piece = min(width, self.most_lanes, MOST_BYTES // size) if aligned else 1
        note = ", !invariant.load !{}" if constant else ""
        elements: list[LlvmValue] = []
        for first in range(0, width, piece):
            address = self._address(pointer, kind, self.add(at, first) if first else at, GLOBAL)
            text = f"load {type_text(kind, piece)}, {GLOBAL} {address}, align {size * piece}{note}"
            vector = self.op(text, kind, piece)
            elements += [self.extract(vector, lane) for lane in range(piece)]
        return elements

    def store_global(self, pointer: str, at: LlvmValue, values: Sequence[LlvmValue], *, aligned: bool = True) -> None:
        kind, size = values[0].kind, memory_bytes(values[0].kind)
        piece = min(len(values), self.most_lanes, MOST_BYTES // size) if aligned else 1
        for first in range(0, len(values), piece):
            address = self._address(pointer, kind, self.add(at, first) if first else at, GLOBAL)
            self._store(self.gathered(list(values[first : first + piece])), address, size * piece)

    def _store(self, vector: LlvmValue, address: str, align: int) -> None:
        self.emit(f"store {vector}, {GLOBAL} {address}, align {align}")

    def atomic(
        self, pointer: str, at: LlvmValue, kind: str, value: LlvmValue, change: Change, plain: str | None = None
    ) -> None:
        address = self._address(pointer, kind, at, GLOBAL)
        if plain is not None:
            self.emit(f"{self.fresh()} = atomicrmw {plain} {GLOBAL} {address}, {value} {_ATOMIC}")
            return
        # What is there now is written over only if it is still what the new element was computed from.
        whole = f"i{BITS[kind]}"
        before, again, done = self.block, self.new_label("again"), self.new_label("done")
        first = self.op(f"load {whole}, {GLOBAL} {address}, align {memory_bytes(kind)}", whole, 1)
        self.jump(again)
        self.label(again)
        place = len(self.lines)
        old = self.op("", whole, 1)
        new = change(self._back(old, kind), value)
        bits = self.bits(new) if kind.startswith("f") else new
        pair = self.fresh()
        self.emit(f"{pair} = cmpxchg {GLOBAL} {address}, {old}, {bits} {_ATOMIC} monotonic")
        seen = self.op(f"extractvalue {{ {whole}, i1 }} {pair}, 0", whole, 1)
        stored = self.op(f"extractvalue {{ {whole}, i1 }} {pair}, 1", "i1", 1)
        self.lines[place] = f"{old.name} = phi {whole} [ {first.name}, %{before} ], [ {seen.name}, %{self.block} ]"
        self.branch(stored, done, again)
        self.label(done)

    @contextmanager
    def where(self, mask: Mask) -> Iterator[None]:
        if mask is None:
            yield
            return
        inside, after = self.new_label("where"), self.new_label("after")
        self.branch(mask, inside, after)
        self.label(inside)
        yield
        self.jump(after)
        self.label(after)

    # Exchange between threads.

    def _word_by_word(self, value: LlvmValue, change: Callable[[LlvmValue], LlvmValue]) -> LlvmValue:
        """What becomes of a value's bits, 32 at a time."""
        bits = BITS[value.kind]
        whole = self.bits(value) if value.kind.startswith("f") else value
        if bits < 32:
            moved = change(self.convert("zext", whole, "i32"))
            return self._back(self.convert("trunc", moved, whole.kind), value.kind)
        if bits == 32:
            return self._back(change(whole), value.kind)
        low = change(self.convert("trunc", whole, "i32"))
        high = change(self.convert("trunc", self.lshr(whole, 32), "i32"))
        joined = self.or_(self.convert("zext", low, "i64"), self.shl(self.convert("zext", high, "i64"), 32))
        return self._back(joined, value.kind)

    def _back(self, value: LlvmValue, kind: str) -> LlvmValue:
        return self.from_bits(value) if kind.startswith("f") else value


def memory_bytes(kind: str) -> int:
    return max(1, BITS[kind] // 8)
