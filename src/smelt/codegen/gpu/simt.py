"""`Simt`: a `Builder` with the primitives that GPU schedules use.

    n = b.thread()                     which thread of its block this is
    x = b.load_global(pointer, n, "f32")      of global memory; `width` elements side by side at once
    y = b.shuffle_xor(x, 16)           what the lane that differs in this bit has
    b.barrier()                        all threads of the block have come here

Two lowerings implement them. `nvptx.Nvptx`: the function is that of one thread. `host.HostWarp`: it is that of one
warp; a value that differs between threads is a vector with a lane per thread. So a schedule is written once, as
straight-line code: whole warps take branches, loops run equally often in all threads, and stores by some threads only
are under `where`. A thread without a point of its own computes the first point and stores nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smelt.codegen.loops.builder import Builder, element_bytes, param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import BITS, GLOBAL, Atomic, CompareExchange, Function, Id, Number, Value
from smelt.symbolic.symsize import is_symsize

Mask = Value | None  # None: all threads
WORKSPACE = param("workspace", GLOBAL)
MOST_BYTES = 16  # of one access
Change = Callable[[Value, Value], Value]  # an element, as it is in memory, and a value → the element then


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
    def lane(self) -> Value:
        """Which thread of its warp this is."""

    @abstractmethod
    def warp_number(self) -> Value:
        """Which warp of its block this is."""

    @abstractmethod
    def block_number(self) -> Value:
        """Which block of the grid this is."""

    def thread(self) -> Value:
        """Which thread of its block this is."""
        return self.add(self.mul(self.warp_number(), self.warp), self.lane())

    def cluster_rank(self) -> Value:
        """Which block of its cluster this is."""
        return self.and_(self.block_number(), self.cluster - 1)

    def index(self, number: Number) -> Value:
        """A count or position."""
        return self.const("i64" if is_symsize(number) else self.index_kind, number)

    # Memory.

    @abstractmethod
    def parameter(self, number: int) -> Value:
        """The address of a buffer, by its place among the kernel's parameters."""

    @abstractmethod
    def number(self, parameter: Value, kind: str) -> Value:
        """The value of a one-element buffer on the host, passed as its `parameter`."""

    @abstractmethod
    def workspace(self, offset: int) -> Value:
        """An address of the memory that the phases of a launch share."""

    @abstractmethod
    def load_global(
        self, pointer: Value, at: Value, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[Value]:
        """`width` elements from `at` on. `aligned`: their address is a multiple of their size. `constant`: nobody
        writes there while the phase runs."""

    @abstractmethod
    def store_global(self, pointer: Value, at: Value, values: Sequence[Value], *, aligned: bool = True) -> None:
        """Elements side by side, from `at` on."""

    @abstractmethod
    def atomic(
        self, pointer: Value, at: Value, kind: str, value: Value, change: Change, plain: str | None = None
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
    def shuffle_xor(self, value: Value, distance: int) -> Value:
        """The value of the lane whose number differs in the bit `distance`."""

    @abstractmethod
    def shuffle_up(self, value: Value, distance: int) -> Value:
        """The value of the lane `distance` before this one; any value for the first ones."""

    @abstractmethod
    def shuffle_from(self, value: Value, lane: Value) -> Value:
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
    def load_shared(self, first: int, at: Value, kind: str) -> Value:
        """An element of a `shared_array`."""

    def load_shared_vector(self, first: int, at: Value, kind: str, width: int) -> list[Value]:
        """Elements side by side, from one on whose address is a multiple of their size, or of sixteen bytes."""
        return [self.load_shared(first, self.add(at, way) if way else at, kind) for way in range(width)]

    @abstractmethod
    def load_cluster(self, first: int, rank: Value, kind: str) -> Value:
        """The first element of a `shared_array` of another block of this cluster."""

    @abstractmethod
    def store_shared(self, first: int, at: Value, value: Value) -> None:
        """Under `where`, by the threads of its mask."""

    # The function.

    @abstractmethod
    def grid_function(self) -> Function:
        """All that was written, as a function."""


class OneThread(Simt):
    """Code of one phase as the function of one thread, with addresses of global memory."""

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
        self._asked: dict[str, Value] = {}

    # Memory.

    def runtime_param(self, number: Number) -> Value:
        assert self.sizes is not None
        return param(f"size{self.sizes.slot(number)}")

    def parameter(self, number: int) -> Value:
        return param(f"b{number}", GLOBAL)

    def number(self, parameter: Value, kind: str) -> Value:
        self.numbers.add(parameter.name)
        whole = self.convert("trunc", Value(parameter.name, "i64"), f"i{8 * memory_bytes(kind)}")
        return self._back(whole, kind)

    def taken(self, number: int) -> Value:
        """A parameter: an address, or a number."""
        parameter = self.parameter(number)
        return Value(parameter.name, "i64") if parameter.name in self.numbers else parameter

    def params(self) -> list[Value]:
        """All parameters of the function."""
        assert self.sizes is not None
        sizes = [param(f"size{slot}") for slot in range(len(self.sizes.params))]
        return [*map(self.taken, range(self.buffers)), WORKSPACE, *sizes]

    def workspace(self, offset: int) -> Value:
        return self.element(WORKSPACE, "i8", self.const("i64", offset) if is_symsize(offset) else offset)

    def asked(self, what: str, kind: str = "i32") -> Value:
        """An `Id`, asked once where the function begins."""
        if what not in self._asked:
            self._asked[what] = out = param(f"id.{what}", kind)
            self.prologue.append(Id(out, what))
        return self._asked[what]

    def _wide(self, value: Value) -> Value:
        return self.convert("zext", value, self.index_kind)

    def load_global(
        self, pointer: Value, at: Value, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[Value]:
        size = memory_bytes(kind)
        piece = min(width, self.most_lanes, MOST_BYTES // size) if aligned else 1
        elements: list[Value] = []
        for first in range(0, width, piece):
            address = self.element(pointer, kind, self.add(at, first) if first else at)
            vector = self.load(address, kind, piece, align=size * piece, invariant=constant)
            elements += [self.extract(vector, lane) for lane in range(piece)]
        return elements

    def store_global(self, pointer: Value, at: Value, values: Sequence[Value], *, aligned: bool = True) -> None:
        kind, size = values[0].kind, memory_bytes(values[0].kind)
        piece = min(len(values), self.most_lanes, MOST_BYTES // size) if aligned else 1
        for first in range(0, len(values), piece):
            address = self.element(pointer, kind, self.add(at, first) if first else at)
            self._store(self.gathered(list(values[first : first + piece])), address, size * piece)

    def _store(self, vector: Value, address: Value, align: int) -> None:
        self.store(vector, address, align)

    def atomic(
        self, pointer: Value, at: Value, kind: str, value: Value, change: Change, plain: str | None = None
    ) -> None:
        address = self.element(pointer, kind, at)
        if plain is not None:
            self.body.append(Atomic(plain, address, value))
            return

        def bits_of(old: Value) -> Value:
            new = change(self._back(old, kind), value)
            return self.bits(new) if kind.startswith("f") else new

        self._update(address, f"i{BITS[kind]}", bits_of)

    def _update(self, address: Value, kind: str, change: Callable[[Value], Value]) -> None:
        """Replace an integer in memory, only if it is still what the new one was computed from."""

        def attempt(old: Value) -> tuple[Value, list[Value]]:
            new = change(old)
            seen, stored = self.fresh(kind), self.fresh("i1")
            self.body.append(CompareExchange(seen, stored, address, old, new))
            return self.not_(stored), [seen]

        self.repeat([self.load(address, kind)], attempt)

    @contextmanager
    def where(self, mask: Mask) -> Iterator[None]:
        if mask is None:
            yield
            return
        with self.when(mask):
            yield

    # Exchange between threads.

    def _word_by_word(self, value: Value, change: Callable[[Value], Value]) -> Value:
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

    def _back(self, value: Value, kind: str) -> Value:
        return self.from_bits(value) if kind.startswith("f") else value


memory_bytes = element_bytes
