"""`HostWarp`: the primitives of GPU schedules on the host. The text is that of one warp, and a thread is a lane of a
vector.

    define void @k0(ptr %buffers, ptr %workspace, i64 %block, i64 %warp, ptr %shared)

So every schedule runs on machines without a GPU. The caller runs the warps of a block one after another, each up to its
next barrier (`csrc/runner`). It is written for correctness, not speed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from smelt.codegen.cpu.target import describe_host
from smelt.codegen.gpu.simt import Change, Mask, Simt, memory_bytes
from smelt.codegen.llvm.builder import LLVM_TYPES, LlvmValue, suffix
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target
from smelt.torch_abi.symbols import SIMT_BARRIER


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

    # Where this is.

    def lane(self) -> LlvmValue:
        return self.iota(self.index_kind, range(self.warp))

    def warp_number(self) -> LlvmValue:
        number = self.convert("trunc", LlvmValue("%warp", "i64"), self.index_kind)
        return number if self.cluster == 1 else self.and_(number, self.warps - 1)

    def block_number(self) -> LlvmValue:
        number = self.convert("trunc", LlvmValue("%block", "i64"), self.index_kind)
        return number if self.cluster == 1 else self.add(self.mul(number, self.cluster), self.cluster_rank())

    def cluster_rank(self) -> LlvmValue:
        number = self.convert("trunc", LlvmValue("%warp", "i64"), self.index_kind)
        return self.lshr(number, self.warps.bit_length() - 1)

    # Memory.

    def parameter(self, number: int) -> str:
        name = f"%b{number}"
        if not any(line.startswith(f"{name} =") for line in self.prologue):
            self.prologue += [
                f"{name}.at = getelementptr ptr, ptr %buffers, i64 {number}",
                f"{name} = load ptr, ptr {name}.at, !invariant.load !{{}}",
            ]
        return name

    def number(self, parameter: str, kind: str) -> LlvmValue:
        return self.load(parameter, kind)

    def workspace(self, offset: int) -> str:
        return self.element("%workspace", "i8", offset)

    def _addresses(self, pointer: str, kind: str, at: LlvmValue) -> str:
        name = self.fresh("p")
        self.emit(f"{name} = getelementptr {LLVM_TYPES[kind]}, ptr {pointer}, {at}")
        return name

    def load_global(
        self, pointer: str, at: LlvmValue, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[LlvmValue]:
        loaded = []
        for place in range(width):
            where = self._addresses(pointer, kind, self.add(at, place) if place else at)
            loaded.append(self._gathered(where, kind) if at.lanes > 1 else self.load(where, kind))
        return loaded

    def _gathered(self, addresses: str, kind: str) -> LlvmValue:
        lanes, align = self.warp, memory_bytes(kind)
        vector = f"<{lanes} x {LLVM_TYPES[kind]}>"
        name = f"llvm.masked.gather.{suffix(kind, lanes)}.v{lanes}p0"
        self.declared.add(f"declare {vector} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {vector})")
        arguments = f"<{lanes} x ptr> {addresses}, i32 {align}, <{lanes} x i1> splat (i1 true), {vector} poison"
        return self.op(f"call {vector} @{name}({arguments})", kind, lanes)

    def store_global(self, pointer: str, at: LlvmValue, values: Sequence[LlvmValue], *, aligned: bool = True) -> None:
        for place, value in enumerate(values):
            self._scatter(self._addresses(pointer, value.kind, self._all(self.add(at, place) if place else at)), value)

    def _all(self, value: LlvmValue) -> LlvmValue:
        return self.splat(value, self.warp)

    def _scatter(self, addresses: str, value: LlvmValue) -> None:
        lanes, align = self.warp, memory_bytes(value.kind)
        vector = f"<{lanes} x {LLVM_TYPES[value.kind]}>"
        name = f"llvm.masked.scatter.{suffix(value.kind, lanes)}.v{lanes}p0"
        self.declared.add(f"declare void @{name}({vector}, <{lanes} x ptr>, i32, <{lanes} x i1>)")
        mask = f"<{lanes} x i1> splat (i1 true)" if self._mask is None else str(self._all(self._mask))
        self.emit(f"call void @{name}({self._all(value)}, <{lanes} x ptr> {addresses}, i32 {align}, {mask})")

    def atomic(
        self, pointer: str, at: LlvmValue, kind: str, value: LlvmValue, change: Change, plain: str | None = None
    ) -> None:
        places, values = self._all(at), self._all(value)
        mask = None if self._mask is None else self._all(self._mask)
        for lane in range(self.warp):
            after = self.new_label("after")
            if mask is not None:
                inside = self.new_label("atomic")
                self.branch(self.extract(mask, lane), inside, after)
                self.label(inside)
            where = self.element(pointer, kind, self.extract(places, lane))
            self.store(change(self.load(where, kind), self.extract(values, lane)), where)
            self.jump(after)
            self.label(after)

    @contextmanager
    def where(self, mask: Mask) -> Iterator[None]:
        before = self._mask
        self._mask = mask if before is None or mask is None else self.and_(before, mask)
        yield
        self._mask = before

    # Exchange between threads.

    def shuffle_xor(self, value: LlvmValue, distance: int) -> LlvmValue:
        return self._permuted(value, [lane ^ distance for lane in range(self.warp)])

    def shuffle_up(self, value: LlvmValue, distance: int) -> LlvmValue:
        return self._permuted(value, [max(lane - distance, 0) for lane in range(self.warp)])

    def shuffle_from(self, value: LlvmValue, lane: LlvmValue) -> LlvmValue:
        if value.lanes == 1:
            return value
        wanted = self._all(lane)
        return self.gathered([self._at(value, self.extract(wanted, each)) for each in range(self.warp)])

    def _at(self, value: LlvmValue, lane: LlvmValue) -> LlvmValue:
        return self.op(f"extractelement {value}, {lane}", value.kind, 1)

    def _permuted(self, value: LlvmValue, order: list[int]) -> LlvmValue:
        vector = self._all(value)
        return self.op(
            f"shufflevector {vector}, {vector.type} poison, {self.iota('i32', order)}", value.kind, self.warp
        )

    def barrier(self) -> None:
        self.has_barrier = True
        self.declared.add(f"declare void @{SIMT_BARRIER}()")
        self.emit(f"call void @{SIMT_BARRIER}()")

    def warp_barrier(self) -> None:
        pass  # a warp is a vector

    def cluster_barrier(self) -> None:
        self.barrier()  # a block's barrier is one of its whole cluster

    def leave_cluster(self) -> None:
        pass  # what a cluster shares stays until all its warps are done

    def load_cluster(self, first: int, rank: LlvmValue, kind: str) -> LlvmValue:
        where = self.mul(self.convert("zext", rank, "i64"), LlvmValue("%apart", "i64"))
        first_bytes = self._addresses(self.element("%shared", "i8", first), "i8", self._all(where))
        return self._gathered(first_bytes, kind)

    def load_shared(self, first: int, at: LlvmValue, kind: str) -> LlvmValue:
        (loaded,) = self.load_global(self.element(self._shared, "i8", first), at, kind)
        return loaded

    def store_shared(self, first: int, at: LlvmValue, value: LlvmValue) -> None:
        self.store_global(self.element(self._shared, "i8", first), at, [value])

    @property
    def _shared(self) -> str:
        return "%shared" if self.cluster == 1 else "%shared.mine"

    # The function.

    def function(self) -> str:
        lines = [*self._find_shared(), *self.prologue, *self.lines]
        body = "\n".join(line if line.endswith(":") else f"  {line}" for line in lines)
        taken = "ptr %buffers, ptr %workspace, i64 %block, i64 %warp, ptr %shared"
        return f"define void @{self.symbol}({taken}) {{\nentry:\n{body}\n  ret void\n}}\n"

    def _find_shared(self) -> list[str]:
        """Where the shared memory of this block of a cluster is, now that its size is known."""
        if self.cluster == 1:
            return []
        return [
            f"%apart = add i64 0, {self.shared_apart}",
            f"%rank = lshr i64 %warp, {self.warps.bit_length() - 1}",
            "%shared.at = mul i64 %rank, %apart",
            "%shared.mine = getelementptr i8, ptr %shared, i64 %shared.at",
        ]

    @property
    def shared_apart(self) -> int:
        """Bytes between the shared memory of two blocks of a cluster."""
        return -(-self.shared_bytes // 16) * 16
