"""`HostWarp`: the primitives of GPU schedules on the host; the text is that of one warp, a thread a lane of a vector.

    define void @k0(ptr %buffers, ptr %workspace, i64 %block, i64 %warp, ptr %shared)

So that every schedule runs where there is no GPU. Who calls it runs the warps of a block in turn, up to their next
barrier each (`csrc/runner`). It is written to be right, not to be fast.
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


def describe_host_warps(name: str, warp: int) -> Target:
    """The host as a GPU with so many threads in a warp."""
    return replace(
        describe_host(),
        name=name,
        warp_size=warp,
        fma_clobbers_addend=False,
        cheap_interleave=False,
        has_narrowing_add=False,
        has_scalef=False,
    )


class HostWarp(Simt):
    """Code of one phase, for the processor this runs on."""

    def __init__(self, target: Target, symbol: str, sizes: Sizes, index_kind: str, *, warp: int) -> None:
        super().__init__(target, symbol, sizes, index_kind)
        self.warp = warp
        self._mask: Mask = None

    # Where this is.

    def lane(self) -> LlvmValue:
        return self.iota(self.index_kind, range(self.warp))

    def warp_number(self) -> LlvmValue:
        return self.convert("trunc", LlvmValue("%warp", "i64"), self.index_kind)

    def block_number(self) -> LlvmValue:
        return self.convert("trunc", LlvmValue("%block", "i64"), self.index_kind)

    # Memory.

    def parameter(self, number: int) -> str:
        name = f"%b{number}"
        if not any(line.startswith(f"{name} =") for line in self.prologue):
            self.prologue += [
                f"{name}.at = getelementptr ptr, ptr %buffers, i64 {number}",
                f"{name} = load ptr, ptr {name}.at, !invariant.load !{{}}",
            ]
        return name

    def workspace(self, offset: int) -> str:
        return self.element("%workspace", "i8", offset)

    def _addresses(self, pointer: str, kind: str, at: LlvmValue) -> str:
        name = self.fresh("p")
        self.emit(f"{name} = getelementptr {LLVM_TYPES[kind]}, ptr {pointer}, {at}")
        return name

    def load_global(
        self, pointer: str, at: LlvmValue, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[LlvmValue]:
        found = []
        for place in range(width):
            where = self._addresses(pointer, kind, self.add(at, place) if place else at)
            found.append(self._gathered(where, kind) if at.lanes > 1 else self.load(where, kind))
        return found

    def _gathered(self, addresses: str, kind: str) -> LlvmValue:
        lanes, align = self.warp, memory_bytes(kind)
        vector = f"<{lanes} x {LLVM_TYPES[kind]}>"
        name = f"llvm.masked.gather.{suffix(kind, lanes)}.v{lanes}p0"
        self.declared.add(f"declare {vector} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {vector})")
        given = f"<{lanes} x ptr> {addresses}, i32 {align}, <{lanes} x i1> splat (i1 true), {vector} poison"
        return self.op(f"call {vector} @{name}({given})", kind, lanes)

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

    # What threads tell each other.

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

    def load_shared(self, first: int, at: LlvmValue, kind: str) -> LlvmValue:
        (found,) = self.load_global(self.element("%shared", "i8", first), at, kind)
        return found

    def store_shared(self, first: int, at: LlvmValue, value: LlvmValue) -> None:
        self.store_global(self.element("%shared", "i8", first), at, [value])

    # The function.

    def function(self) -> str:
        body = "\n".join(line if line.endswith(":") else f"  {line}" for line in (*self.prologue, *self.lines))
        taken = "ptr %buffers, ptr %workspace, i64 %block, i64 %warp, ptr %shared"
        return f"define void @{self.symbol}({taken}) {{\nentry:\n{body}\n  ret void\n}}\n"
