"""`Simt`: a `Builder` with the primitives that GPU schedules are written over, and nothing else of a GPU.

    n = b.thread()                     which thread of its block this is
    x = b.load_global(pointer, n, "f32")      of global memory; `width` elements side by side at once
    y = b.shuffle_xor(x, 16)           what the lane that differs in this bit has
    b.barrier()                        all threads of the block have come here

Two lowerings write them out. `nvptx.Nvptx`: the text is that of one thread. `host.HostWarp`: the text is that of one
warp, a value that differs between its threads is a vector, one of its lanes a thread. So a schedule is written once,
in straight code: branches are taken by whole warps, loops run equally often in all threads, and what only some threads
may store stands under `where`. A thread that has no point of its own computes what the first point gives, and stores
nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smelt.codegen.llvm.builder import BITS, Builder, LlvmValue, Number
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target
from smelt.symbolic.symsize import is_symsize

Mask = LlvmValue | None  # None: all threads
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
        """What is in a buffer of one element that the host has, which has no other address than its `parameter`."""

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

    # What threads of a warp, and of a block, tell each other.

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
        """The same for the threads of all blocks of a cluster, and what they stored to shared memory."""

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


def memory_bytes(kind: str) -> int:
    return max(1, BITS[kind] // 8)
