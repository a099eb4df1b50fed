"""`Spirv`: what differs for Vulkan from the other GPUs in the primitives of GPU schedules.

    shared memory     has no addresses: each array is a separate variable for each type of number kept in it
    shuffles          name the lane that is read, or go through shared memory where the device has none
    atomics           have 32 bits at least: of narrower numbers, the word around them is changed
    blocks            are numbered from the first one of a launch in pieces

A warp is what Vulkan calls a subgroup. A thread's number follows from its subgroup and its lane, because Vulkan does
not specify how devices number the threads of a group.
"""

from contextlib import AbstractContextManager
from typing import Any

from smelt.codegen.gpu.simt import Change, Mask, Simt
from smelt.codegen.loops.builder import element_bytes
from smelt.ir.loops import BITS, GLOBAL, SHARED, SharedArray, Value


class Spirv(Simt):
    """Code of one phase, for Vulkan's devices."""

    shared_lanes = 1
    reads_parameters = True

    def __init__(self, *of_phase: Any, **more: Any) -> None:
        super().__init__(*of_phase, **more)
        self._rooms: dict[int, int] = {}  # arrays of shared memory, by their first byte → bytes
        self._arrays: set[tuple[int, str]] = set()  # which of them are used, and for what
        self._words: int | None = None  # through which lanes exchange what they have

    def launched_block(self) -> Value:
        return self.add(self.id("first_block", "i64"), super().launched_block())

    def block_number(self) -> Value:
        return self._own_block or self.convert("trunc", self.launched_block(), self.index_kind)

    # Memory.

    def where_stored(self, mask: Mask) -> AbstractContextManager[None]:
        return self.where(mask)

    def atomic(
        self, pointer: Value, at: Value, kind: str, value: Value, change: Change, plain: str | None = None
    ) -> None:
        if BITS[kind] >= 32:
            # Sums of floats are an extension that few devices have.
            super().atomic(pointer, at, kind, value, change, None if plain == "fadd" else plain)
            return
        number = self.convert("ptrtoint", self.element(pointer, kind, at), "i64")
        aligned = self.convert("inttoptr", self.and_(number, -4), GLOBAL)
        shift = self.convert("trunc", self.shl(self.and_(number, 3), 3), "i32")
        others = self.not_(self.shl(self.const("i32", (1 << BITS[kind]) - 1), shift))

        def changed(old: Value) -> Value:
            mine = self.convert("trunc", self.lshr(old, shift), f"i{BITS[kind]}")
            word = self.convert("zext", self._whole(change(self._back(mine, kind), value)), "i32")
            return self.or_(self.and_(old, others), self.shl(word, shift))

        self._update(aligned, "i32", changed)

    def shared_array(self, kind: str, length: int) -> int:
        first = super().shared_array(kind, max(1, length))
        self._rooms[first] = element_bytes(kind) * length
        return first

    def exchange_array(self, size: int) -> int:
        first = super().exchange_array(size)
        self._rooms[first] = max(self._rooms[first], size)
        return first

    def shared_address(self, first: int, kind: str) -> Value:
        self._arrays.add((first, kind))
        return Value(f"@{self.symbol}.shared{first}.{kind}", SHARED)

    def shared_arrays(self) -> tuple[SharedArray, ...]:
        return tuple(
            SharedArray(self.shared_address(first, kind).name[1:], kind, -(-self._rooms[first] // element_bytes(kind)))
            for first, kind in sorted(self._arrays)
        )

    @property
    def shared_size(self) -> int:
        return sum(array.length * element_bytes(array.kind) for array in self.shared_arrays())

    # Exchange between threads.

    def _shuffle_word(self, word: Value, mode: str, lane: Value) -> Value:
        mine = self.id("lane")
        if mode == "xor":
            lane = self.xor(mine, lane)
        elif mode == "up":
            lane = self.select(self.icmp("uge", mine, lane), self.sub(mine, lane), 0)
        if "+shuffle" in self.target.features.split(","):
            return super()._shuffle_word(word, "from", lane)
        if self._words is None:
            self._words = self.shared_array("i32", self.threads)
        first = self.mul(self.id("warp"), self.warp)
        self.store_shared(self._words, self.add(first, mine), word)
        self.warp_barrier()
        loaded = self.load_shared(self._words, self.add(first, lane), "i32")
        self.warp_barrier()  # before the next value is there
        return loaded
