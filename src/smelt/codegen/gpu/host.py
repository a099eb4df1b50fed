"""`HostWarp`: the primitives of GPU schedules on the host. The function is that of one warp, and a thread is a lane of
a vector.

    define void @k0(ptr %buffers, ptr %workspace, i64 %block, i64 %warp, ptr %shared)

So every schedule runs on machines without a GPU. The caller runs the warps of a block one after another, each up to its
next barrier (`csrc/runner`). It is written for correctness, not speed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from smelt.codegen.cpu.target import describe_host
from smelt.codegen.gpu.simt import Change, Mask, Simt, memory_bytes
from smelt.codegen.loops.builder import BUFFERS, WORKSPACE, param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import Address, Compute, Function, Load, Node, Store, Value
from smelt.symbolic.symsize import is_symsize
from smelt.torch_abi.symbols import SIMT_BARRIER

_BLOCK, _WARP = param("block"), param("warp")
_SHARED, _MINE = param("shared", "ptr"), param("shared.mine", "ptr")  # of a launched block, and of a cluster's block
_APART = param("apart")


def describe_host_warps(name: str, warp: int, cluster: int = 1) -> Target:
    """The host as a GPU with so many threads in a warp, and at most so many blocks in a cluster."""
    return replace(
        describe_host(),
        name=name,
        warp_size=warp,
        cluster_blocks=cluster,
        fma_clobbers_addend=False,
        cheap_interleave=False,
        has_narrowing_add=False,
        has_scalef=False,
    )


class HostWarp(Simt):
    """Code of one phase for this processor. A launched block is a whole cluster: the warps of all its blocks, `warps`
    of each, whose shared memories are consecutive."""

    def __init__(
        self, target: Target, symbol: str, sizes: Sizes, index_kind: str, *, warp: int, cluster: int = 1, warps: int = 1
    ) -> None:
        super().__init__(target, symbol, sizes, index_kind, cluster)
        self.warp, self.warps = warp, warps
        self._mask: Mask = None
        self._loaded: set[int] = set()

    # Where this is.

    def lane(self) -> Value:
        return self.iota(self.index_kind, range(self.warp))

    def warp_number(self) -> Value:
        number = self.convert("trunc", _WARP, self.index_kind)
        return number if self.cluster == 1 else self.and_(number, self.warps - 1)

    def block_number(self) -> Value:
        number = self.convert("trunc", _BLOCK, self.index_kind)
        return number if self.cluster == 1 else self.add(self.mul(number, self.cluster), self.cluster_rank())

    def cluster_rank(self) -> Value:
        number = self.convert("trunc", _WARP, self.index_kind)
        return self.lshr(number, self.warps.bit_length() - 1)

    # Memory.

    def parameter(self, number: int) -> Value:
        address = param(f"b{number}", "ptr")
        if number not in self._loaded:
            self._loaded.add(number)
            place = param(f"b{number}.at", "ptr")
            self.prologue.append(Address(place, self.buffer_array(), "ptr", self.const("i64", number)))
            self.prologue.append(Load(address, place, 0, invariant=True))
        return address

    def number(self, parameter: Value, kind: str) -> Value:
        return self.load(parameter, kind)

    def workspace(self, offset: int) -> Value:
        return self.element(WORKSPACE, "i8", self.const("i64", offset) if is_symsize(offset) else offset)

    def load_global(
        self, pointer: Value, at: Value, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[Value]:
        places = (self.element(pointer, kind, self.add(at, place) if place else at) for place in range(width))
        return [self.load(place, kind, place.lanes) for place in places]

    def store_global(self, pointer: Value, at: Value, values: Sequence[Value], *, aligned: bool = True) -> None:
        for place, value in enumerate(values):
            addresses = self.element(pointer, value.kind, self._all(self.add(at, place) if place else at))
            mask = None if self._mask is None else self._all(self._mask)
            self.body.append(Store(self._all(value), addresses, memory_bytes(value.kind), mask=mask))

    def _all(self, value: Value) -> Value:
        return self.splat(value, self.warp)

    def atomic(
        self, pointer: Value, at: Value, kind: str, value: Value, change: Change, plain: str | None = None
    ) -> None:
        places, values = self._all(at), self._all(value)
        mask = None if self._mask is None else self._all(self._mask)
        for lane in range(self.warp):
            with nullcontext() if mask is None else self.when(self.extract(mask, lane)):
                where = self.element(pointer, kind, self.extract(places, lane))
                self.store(change(self.load(where, kind), self.extract(values, lane)), where)

    @contextmanager
    def where(self, mask: Mask) -> Iterator[None]:
        before = self._mask
        self._mask = mask if before is None or mask is None else self.and_(before, mask)
        yield
        self._mask = before

    # Exchange between threads.

    def shuffle_xor(self, value: Value, distance: int) -> Value:
        return self.permute(self._all(value), [lane ^ distance for lane in range(self.warp)])

    def shuffle_up(self, value: Value, distance: int) -> Value:
        return self.permute(self._all(value), [max(lane - distance, 0) for lane in range(self.warp)])

    def shuffle_from(self, value: Value, lane: Value) -> Value:
        if value.lanes == 1:
            return value
        lanes = self._all(lane)
        return self.gathered([self.extract(value, self.extract(lanes, each)) for each in range(self.warp)])

    def barrier(self) -> None:
        self.has_barrier = True
        self.call(SIMT_BARRIER)

    def warp_barrier(self) -> None:
        pass  # a warp is a vector

    def cluster_barrier(self) -> None:
        self.barrier()  # a block's barrier is one of its whole cluster

    def leave_cluster(self) -> None:
        pass  # what a cluster shares stays until all its warps are done

    def load_cluster(self, first: int, rank: Value, kind: str) -> Value:
        where = self.mul(self.convert("zext", rank, "i64"), _APART)
        first_bytes = self.element(self.element(_SHARED, "i8", first), "i8", self._all(where))
        return self.load(first_bytes, kind, self.warp)

    def load_shared(self, first: int, at: Value, kind: str) -> Value:
        (loaded,) = self.load_global(self.element(self._shared, "i8", first), at, kind)
        return loaded

    def store_shared(self, first: int, at: Value, value: Value) -> None:
        self.store_global(self.element(self._shared, "i8", first), at, [value])

    @property
    def _shared(self) -> Value:
        return _SHARED if self.cluster == 1 else _MINE

    # The function.

    def grid_function(self) -> Function:
        return self._function(self._find_shared())

    def _function(self, before: Sequence[Node]) -> Function:
        function = self.function(self.symbol, (BUFFERS, WORKSPACE, _BLOCK, _WARP, _SHARED), "entry")
        function.body[:0] = before
        return function

    def _find_shared(self) -> list[Node]:
        """Where the shared memory of this block of a cluster is, now that its size is known."""
        if self.cluster == 1:
            return []
        rank, at = param("rank"), param("shared.at")
        shift = self.const("i64", self.warps.bit_length() - 1)
        return [
            Compute(_APART, "add", (self.const("i64", 0), self.const("i64", self.shared_apart))),
            Compute(rank, "lshr", (_WARP, shift)),
            Compute(at, "mul", (rank, _APART)),
            Address(_MINE, _SHARED, "i8", at),
        ]

    @property
    def shared_apart(self) -> int:
        """Bytes between the shared memory of two blocks of a cluster."""
        return -(-self.shared_bytes // 16) * 16
