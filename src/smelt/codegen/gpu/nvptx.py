"""`Nvptx`: the primitives of GPU schedules for LLVM's NVPTX. The function is that of one thread.

    define ptx_kernel void @k0(ptr addrspace(1) %b0, …, ptr addrspace(1) %workspace, i64 %size0, …)

Sixteen bytes are loaded at a time where they are aligned. The C library is not available, and LLVM's intrinsics for
exp, log and similar functions abort the process: the math is our own.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from smelt.codegen.gpu.simt import MOST_BYTES, Mask, OneThread, memory_bytes
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import CLUSTER, SHARED, Barrier, Function, Remote, SharedArray, Shuffle, Store, Value, called

_SHARED_NAME = "smelt_shared"


def why_not_ptx(functions: Iterable[Function]) -> str | None:
    """Why LLVM must not compile functions for NVIDIA's GPUs: any function that is neither defined nor one of these
    chips' own would end the process or the assembler."""
    functions = list(functions)
    defined = {each.name for each in functions}
    names = sorted(name for each in functions for name in called(each) - defined if not name.startswith("llvm.nvvm."))
    return f"no GPU has the function {names[0]}" if names else None


class Nvptx(OneThread):
    """Code of one phase, for NVIDIA's GPUs."""

    warp = 32

    def __init__(
        self,
        target: Target,
        symbol: str,
        sizes: Sizes,
        index_kind: str,
        *,
        buffers: int,
        threads: int,
        cluster: int = 1,
        resident: int = 0,
        predicates: bool = True,
    ) -> None:
        super().__init__(target, symbol, sizes, index_kind, cluster, buffers=buffers, threads=threads)
        self.resident = resident  # blocks side by side: the assembler spills no registers for more of them
        self.predicates = predicates  # stores that only some threads do are no branches
        self._predicate: Mask = None  # of threads that store
        self._uses_shared = False

    # Where this is.

    def lane(self) -> Value:
        return self._wide(self.and_(self.asked("thread"), self.warp - 1))

    def warp_number(self) -> Value:
        return self._wide(self.lshr(self.asked("thread"), self.warp.bit_length() - 1))

    def thread(self) -> Value:
        return self._wide(self.asked("thread"))

    def block_number(self) -> Value:
        return self._wide(self.asked("block"))

    # Memory.

    def _store(self, vector: Value, address: Value, align: int) -> None:
        self.body.append(Store(vector, address, align, mask=self._predicate))

    @contextmanager
    def where_stored(self, mask: Mask) -> Iterator[None]:
        """Without a branch: the assembler moves no load over one, and what tiles read would come one by one. That
        takes registers."""
        if mask is None or not self.predicates:
            with self.where(mask):
                yield
            return
        assert self._predicate is None
        self._predicate = mask
        yield
        self._predicate = None

    # Exchange between threads.

    def shuffle_xor(self, value: Value, distance: int) -> Value:
        return self._word_by_word(value, lambda word: self._shuffle(word, "xor", self.const("i32", distance)))

    def shuffle_up(self, value: Value, distance: int) -> Value:
        return self._word_by_word(value, lambda word: self._shuffle(word, "up", self.const("i32", distance)))

    def shuffle_from(self, value: Value, lane: Value) -> Value:
        where = self.convert("trunc", lane, "i32")
        return self._word_by_word(value, lambda word: self._shuffle(word, "from", where))

    def _shuffle(self, value: Value, mode: str, lane: Value) -> Value:
        out = self.fresh("i32")
        self.body.append(Shuffle(out, value, mode, lane))
        return out

    def barrier(self) -> None:
        self.has_barrier = True
        self.body.append(Barrier("block"))

    def warp_barrier(self) -> None:
        self.body.append(Barrier("warp"))

    def cluster_barrier(self) -> None:
        self.body.append(Barrier("cluster"))

    def leave_cluster(self) -> None:
        self.body.append(Barrier("leave"))

    def load_cluster(self, first: int, rank: Value, kind: str) -> Value:
        address, where = self.fresh(CLUSTER), self.convert("trunc", rank, "i32")
        self.body.append(Remote(address, self._shared(first), where))
        return self.load(address, kind)

    def load_shared(self, first: int, at: Value, kind: str) -> Value:
        return self.load(self.element(self._shared(first), kind, at), kind)

    def load_shared_vector(self, first: int, at: Value, kind: str, width: int) -> list[Value]:
        size = memory_bytes(kind)
        piece = min(width, MOST_BYTES // size)
        elements: list[Value] = []
        for way in range(0, width, piece):
            address = self.element(self._shared(first), kind, self.add(at, way) if way else at)
            vector = self.load(address, kind, piece, align=size * piece)
            elements += [self.extract(vector, lane) for lane in range(piece)]
        return elements

    def store_shared(self, first: int, at: Value, value: Value) -> None:
        self.store(value, self.element(self._shared(first), value.kind, at))

    def _shared(self, first: int) -> Value:
        """Dynamic shared memory of the block; all kernels of a module use the same name."""
        self._uses_shared = True
        return self.element(Value(f"@{_SHARED_NAME}", SHARED), "i8", first)

    # The function.

    def grid_function(self) -> Function:
        function = self.function(self.symbol, self.params(), "grid")
        function.threads, function.resident, function.cluster = self.threads, self.resident, self.cluster
        function.shared = (SharedArray(_SHARED_NAME, "i8", 0),) if self._uses_shared else ()
        return function
