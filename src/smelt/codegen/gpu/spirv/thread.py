"""`Spirv`: the primitives of GPU schedules for Vulkan. The function is that of one thread.

    Function("k0_0", (%b0, …, %workspace, %size0, …), kind="grid", threads=256)

A warp is what Vulkan calls a subgroup. A thread's number follows from its subgroup and its lane, because Vulkan does
not specify how devices number the threads of a group. Shared memory has no addresses, so each array is a separate
variable for each type of number kept in it.
"""

from collections.abc import Sequence

from smelt.codegen.gpu.simt import Change, OneThread, memory_bytes
from smelt.codegen.loops.builder import param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import BITS, GLOBAL, SHARED, Barrier, Compute, Convert, Function, SharedArray, Shuffle, Value

_NO_CLUSTERS = "Vulkan has no clusters"


class Spirv(OneThread):
    """Code of one phase, for Vulkan's devices."""

    most_lanes = 4  # a vector has no more

    def __init__(
        self, target: Target, symbol: str, sizes: Sizes, index_kind: str, *, buffers: int, threads: int
    ) -> None:
        super().__init__(target, symbol, sizes, index_kind, buffers=buffers, threads=threads)
        self.warp = target.warp_size
        self._rooms: dict[int, int] = {}  # arrays of shared memory, by their first byte → bytes
        self._arrays: set[tuple[int, str]] = set()  # which of them are used, and for what
        self._words: int | None = None  # through which lanes exchange what they have

    # Where this is.

    def lane(self) -> Value:
        return self._wide(self.asked("lane"))

    def warp_number(self) -> Value:
        return self._wide(self.asked("warp"))

    def block_number(self) -> Value:
        return self.convert("trunc", self._block(), self.index_kind)

    def _block(self) -> Value:
        """A launch with more groups than the device allows comes in pieces."""
        block = param("block")
        if "first_block" not in self._asked:
            here, first, wide = self.asked("block"), self.asked("first_block", "i64"), param("block.wide")
            self.prologue += [Convert(wide, "zext", here), Compute(block, "add", (first, wide))]
        return block

    # Memory.

    def atomic(
        self, pointer: Value, at: Value, kind: str, value: Value, change: Change, plain: str | None = None
    ) -> None:
        if BITS[kind] >= 32:
            # Sums of floats are an extension that few devices have.
            super().atomic(pointer, at, kind, value, change, None if plain == "fadd" else plain)
            return
        self._atomic_in_word(self.element(pointer, kind, at), kind, value, change)

    def _atomic_in_word(self, address: Value, kind: str, value: Value, change: Change) -> None:
        """Of 8 or 16 bits: the word around them is changed."""
        whole, bits = f"i{BITS[kind]}", BITS[kind]
        number = self.convert("ptrtoint", address, "i64")
        aligned = self.convert("inttoptr", self.and_(number, -4), GLOBAL)
        shift = self.convert("trunc", self.shl(self.and_(number, 3), 3), "i32")
        others = self.not_(self.shl(self.const("i32", (1 << bits) - 1), shift))

        def changed(old: Value) -> Value:
            mine = self.convert("trunc", self.lshr(old, shift), whole)
            new = change(self._back(mine, kind), value)
            word = self.convert("zext", self.bits(new) if kind.startswith("f") else new, "i32")
            return self.or_(self.and_(old, others), self.shl(word, shift))

        self._update(aligned, "i32", changed)

    def shared_array(self, kind: str, length: int) -> int:
        first = super().shared_array(kind, max(1, length))
        self._rooms[first] = memory_bytes(kind) * length
        return first

    def exchange_array(self, size: int) -> int:
        first = super().exchange_array(size)
        self._rooms[first] = max(self._rooms[first], size)
        return first

    def load_shared(self, first: int, at: Value, kind: str) -> Value:
        return self.load(self.element(self._shared(first, kind), kind, at), kind)

    def store_shared(self, first: int, at: Value, value: Value) -> None:
        self.store(value, self.element(self._shared(first, value.kind), value.kind, at))

    def _shared(self, first: int, kind: str) -> Value:
        self._arrays.add((first, kind))
        return Value(f"@{self.symbol}.shared{first}.{kind}", SHARED)

    # Exchange between threads.

    def shuffle_xor(self, value: Value, distance: int) -> Value:
        return self.shuffle_from(value, self.xor(self.lane(), distance))

    def shuffle_up(self, value: Value, distance: int) -> Value:
        lane = self.lane()
        return self.shuffle_from(value, self.select(self.icmp("uge", lane, distance), self.sub(lane, distance), 0))

    def shuffle_from(self, value: Value, lane: Value) -> Value:
        if "+shuffle" in self.target.features.split(","):
            where = self.convert("trunc", lane, "i32")
            return self._word_by_word(value, lambda word: self._read_lane(word, where))
        if self._words is None:
            self._words = self.shared_array("i32", self.threads)
        return self._word_by_word(value, lambda word: self._read_through_memory(word, lane))

    def _read_lane(self, word: Value, lane: Value) -> Value:
        out = self.fresh("i32")
        self.body.append(Shuffle(out, word, "from", lane))
        return out

    def _read_through_memory(self, word: Value, lane: Value) -> Value:
        assert self._words is not None
        self.store_shared(self._words, self.thread(), word)
        self.warp_barrier()
        loaded = self.load_shared(self._words, self.add(self.mul(self.warp_number(), self.warp), lane), "i32")
        self.warp_barrier()  # before the next value is there
        return loaded

    def barrier(self) -> None:
        self.has_barrier = True
        self.body.append(Barrier("block"))

    def warp_barrier(self) -> None:
        self.body.append(Barrier("warp"))

    def cluster_barrier(self) -> None:
        raise AssertionError(_NO_CLUSTERS)

    def leave_cluster(self) -> None:
        raise AssertionError(_NO_CLUSTERS)

    def load_cluster(self, first: int, rank: Value, kind: str) -> Value:
        raise AssertionError(_NO_CLUSTERS)

    # The function.

    def grid_function(self) -> Function:
        return self._function(self.params())

    def _function(self, params: Sequence[Value]) -> Function:
        function = self.function(self.symbol, params, "grid")
        function.threads, function.features = self.threads, self.target.features
        function.shared = tuple(
            SharedArray(self._shared(first, kind).name[1:], kind, -(-self._rooms[first] // memory_bytes(kind)))
            for first, kind in sorted(self._arrays)
        )
        return function

    @property
    def shared_size(self) -> int:
        """Bytes of all arrays of shared memory."""
        return sum(-(-self._rooms[first] // memory_bytes(kind)) * memory_bytes(kind) for first, kind in self._arrays)
