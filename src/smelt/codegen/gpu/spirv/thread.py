"""`Spirv`: the primitives of GPU schedules for Vulkan. The text is that of one thread, and `translate` reads it.

    define spir_kernel void @k0_0(ptr addrspace(1) %b0, …, ptr addrspace(1) %workspace, i64 %size0, …) "threads"="256"

A warp is what Vulkan calls a subgroup. A thread's number follows from its subgroup and its lane, because Vulkan does
not specify how devices number the threads of a group. Shared memory has no addresses, so each array is a separate
variable for each type of number kept in it.
"""

from collections.abc import Sequence

from smelt.codegen.gpu.simt import GLOBAL, Change, OneThread, memory_bytes
from smelt.codegen.llvm.builder import BITS, LLVM_TYPES, LlvmValue
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target

_SHARED = "ptr addrspace(3)"
_BARRIER = "llvm.spv.group.memory.barrier.with.group.sync"
_NO_CLUSTERS = "Vulkan has no clusters"


class Spirv(OneThread):
    """Code of one phase, for Vulkan's devices."""

    most_lanes = 4  # a vector has no more

    def __init__(
        self, target: Target, symbol: str, sizes: Sizes, index_kind: str, *, buffers: int, threads: int
    ) -> None:
        super().__init__(target, symbol, sizes, index_kind, buffers=buffers, threads=threads)
        self.warp = target.warp_size
        self._known: dict[str, LlvmValue] = {}
        self._rooms: dict[int, int] = {}  # arrays of shared memory, by their first byte → bytes
        self._arrays: set[tuple[int, str]] = set()  # which of them are used, and for what
        self._words: int | None = None  # through which lanes exchange what they have

    # Where this is.

    def _asked(self, name: str, parameters: str = "", arguments: str = "") -> LlvmValue:
        if name not in self._known:
            self.declared.add(f"declare i32 @{name}({parameters})")
            name_of = self.fresh("here")
            self.prologue.append(f"{name_of} = call i32 @{name}({arguments})")
            self._known[name] = LlvmValue(name_of, "i32")
        return self._known[name]

    def _wide(self, value: LlvmValue) -> LlvmValue:
        return self.convert("zext", value, self.index_kind)

    def lane(self) -> LlvmValue:
        return self._wide(self._asked("llvm.spv.subgroup.local.invocation.id"))

    def warp_number(self) -> LlvmValue:
        return self._wide(self._asked("llvm.spv.subgroup.id"))

    def block_number(self) -> LlvmValue:
        """A launch with more groups than the device allows comes in pieces."""
        if "block" not in self._known:
            here = self._asked("llvm.spv.group.id.i32", "i32", "i32 0")
            self.declared.add("declare i64 @smelt.first_block()")
            first, wide, block = (self.fresh("block") for _ in range(3))
            self.prologue += [
                f"{first} = call i64 @smelt.first_block()",
                f"{wide} = zext {here} to i64",
                f"{block} = add i64 {first}, {wide}",
            ]
            self._known["block"] = LlvmValue(block, "i64")
        return self.convert("trunc", self._known["block"], self.index_kind)

    # Memory.

    def atomic(
        self, pointer: str, at: LlvmValue, kind: str, value: LlvmValue, change: Change, plain: str | None = None
    ) -> None:
        if BITS[kind] >= 32:
            # Sums of floats are an extension that few devices have.
            super().atomic(pointer, at, kind, value, change, None if plain == "fadd" else plain)
            return
        self._atomic_in_word(self._address(pointer, kind, at, GLOBAL), kind, value, change)

    def _atomic_in_word(self, address: str, kind: str, value: LlvmValue, change: Change) -> None:
        """Of 8 or 16 bits: the word around them is changed."""
        whole, bits = f"i{BITS[kind]}", BITS[kind]
        number = self.op(f"ptrtoint {GLOBAL} {address} to i64", "i64", 1)
        aligned = self.op(f"inttoptr {self.and_(number, -4)} to {GLOBAL}", "ptr", 1).name
        shift = self.convert("trunc", self.shl(self.and_(number, 3), 3), "i32")
        others = self.not_(self.shl(self.const("i32", (1 << bits) - 1), shift))
        before, again, done = self.block, self.new_label("again"), self.new_label("done")
        first = self.op(f"load i32, {GLOBAL} {aligned}, align 4", "i32", 1)
        self.jump(again)
        self.label(again)
        place = len(self.lines)
        old = self.op("", "i32", 1)
        mine = self.convert("trunc", self.lshr(old, shift), whole)
        new = change(self._back(mine, kind), value)
        word = self.convert("zext", self.bits(new) if kind.startswith("f") else new, "i32")
        updated = self.or_(self.and_(old, others), self.shl(word, shift))
        pair = self.fresh()
        self.emit(f"{pair} = cmpxchg {GLOBAL} {aligned}, {old}, {updated} monotonic monotonic")
        seen = self.op(f"extractvalue {{ i32, i1 }} {pair}, 0", "i32", 1)
        stored = self.op(f"extractvalue {{ i32, i1 }} {pair}, 1", "i1", 1)
        self.lines[place] = f"{old.name} = phi i32 [ {first.name}, %{before} ], [ {seen.name}, %{self.block} ]"
        self.branch(stored, done, again)
        self.label(done)

    def shared_array(self, kind: str, length: int) -> int:
        first = super().shared_array(kind, max(1, length))
        self._rooms[first] = memory_bytes(kind) * length
        return first

    def exchange_array(self, size: int) -> int:
        first = super().exchange_array(size)
        self._rooms[first] = max(self._rooms[first], size)
        return first

    def load_shared(self, first: int, at: LlvmValue, kind: str) -> LlvmValue:
        address = self._address(self._shared(first, kind), kind, at, _SHARED)
        return self.op(f"load {LLVM_TYPES[kind]}, {_SHARED} {address}, align {memory_bytes(kind)}", kind, 1)

    def store_shared(self, first: int, at: LlvmValue, value: LlvmValue) -> None:
        address = self._address(self._shared(first, value.kind), value.kind, at, _SHARED)
        self.emit(f"store {value}, {_SHARED} {address}, align {memory_bytes(value.kind)}")

    def _shared(self, first: int, kind: str) -> str:
        self._arrays.add((first, kind))
        return f"@{self.symbol}.shared{first}.{kind}"

    # Exchange between threads.

    def shuffle_xor(self, value: LlvmValue, distance: int) -> LlvmValue:
        return self.shuffle_from(value, self.xor(self.lane(), distance))

    def shuffle_up(self, value: LlvmValue, distance: int) -> LlvmValue:
        lane = self.lane()
        return self.shuffle_from(value, self.select(self.icmp("uge", lane, distance), self.sub(lane, distance), 0))

    def shuffle_from(self, value: LlvmValue, lane: LlvmValue) -> LlvmValue:
        if "+shuffle" in self.target.features.split(","):
            where = self.convert("trunc", lane, "i32")
            return self._word_by_word(value, lambda word: self._read_lane(word, where))
        if self._words is None:
            self._words = self.shared_array("i32", self.threads)
        return self._word_by_word(value, lambda word: self._read_through_memory(word, lane))

    def _read_lane(self, word: LlvmValue, lane: LlvmValue) -> LlvmValue:
        name = "llvm.spv.wave.readlane.i32"
        self.declared.add(f"declare i32 @{name}(i32, i32)")
        return self.op(f"call i32 @{name}({word}, {lane})", "i32", 1)

    def _read_through_memory(self, word: LlvmValue, lane: LlvmValue) -> LlvmValue:
        assert self._words is not None
        self.store_shared(self._words, self.thread(), word)
        self.warp_barrier()
        loaded = self.load_shared(self._words, self.add(self.mul(self.warp_number(), self.warp), lane), "i32")
        self.warp_barrier()  # before the next value is there
        return loaded

    def barrier(self) -> None:
        self.has_barrier = True
        self._call(_BARRIER)

    def warp_barrier(self) -> None:
        self._call("llvm.spv.subgroup.barrier")

    def _call(self, name: str) -> None:
        self.declared.add(f"declare void @{name}()")
        self.emit(f"call void @{name}()")

    def cluster_barrier(self) -> None:
        raise AssertionError(_NO_CLUSTERS)

    def leave_cluster(self) -> None:
        raise AssertionError(_NO_CLUSTERS)

    def load_cluster(self, first: int, rank: LlvmValue, kind: str) -> LlvmValue:
        raise AssertionError(_NO_CLUSTERS)

    # The function.

    def function(self) -> str:
        assert self.sizes is not None
        taken = [f"{self._taken(number)} %b{number}" for number in range(self.buffers)]
        taken += [f"{GLOBAL} %workspace", *(f"i64 %size{n}" for n in range(len(self.sizes.params)))]
        return self._function(taken, [*self.prologue, *self.lines])

    def _function(self, taken: Sequence[str], lines: Sequence[str], more: str = "") -> str:
        body = "\n".join(line if line.endswith(":") else f"  {line}" for line in lines)
        arrays = []
        for first, kind in sorted(self._arrays):
            length = -(-self._rooms[first] // memory_bytes(kind))
            name = self._shared(first, kind)
            arrays.append(f"{name} = internal addrspace(3) global [{length} x {LLVM_TYPES[kind]}] poison\n")
        notes = f'"threads"="{self.threads}" "features"="{self.target.features}"{more}'
        head = f"define spir_kernel void @{self.symbol}({', '.join(taken)}) {notes}"
        return f"{''.join(arrays)}{head} {{\nentry:\n{body}\n  ret void\n}}\n"

    @property
    def shared_size(self) -> int:
        """Bytes of all arrays of shared memory."""
        return sum(-(-self._rooms[first] // memory_bytes(kind)) * memory_bytes(kind) for first, kind in self._arrays)
