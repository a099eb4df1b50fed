"""`Simt`: a `Builder` with the primitives that GPU schedules use. The function is that of one thread.

    n = b.thread()                     which thread of its block this is
    x = b.load_global(pointer, n, "f32")      of global memory; `width` elements side by side at once
    y = b.shuffle_xor(x, 16)           what the lane that differs in this bit has
    b.barrier()                        all threads of the block have come here

    → Function("k0_0", (%b0, …, %workspace, %size0, …), kind="grid", threads=256)

Schedules write straight-line code: whole warps take branches, loops run equally often in all threads, and stores by
some threads only are under `where`. A thread without a point of its own computes the first point and stores nothing. So
the finished function can be rewritten to that of a warp (`lowered`, in `tests/simt_host`).

For Vulkan (`Target.form` is "spirv") some primitives are several nodes: shared memory has no addresses, so each array
is a variable for each kind of number kept in it; atomic operations have 32 bits at least; and lanes exchange values
through shared memory on devices without shuffles. A warp is what Vulkan calls a subgroup.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from smelt.codegen.loops.builder import Builder, element_bytes, param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import (
    BITS,
    CLUSTER,
    GLOBAL,
    SHARED,
    Atomic,
    Barrier,
    CompareExchange,
    CopyAsync,
    CopyCommit,
    CopyWait,
    Function,
    Id,
    LoadMatrix,
    Mma,
    Node,
    Number,
    Remote,
    SharedArray,
    Shuffle,
    Store,
    Value,
)
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

Mask = Value | None  # None: all threads
WORKSPACE = param("workspace", GLOBAL)
SHARED_NAME = "smelt_shared"
MOST_BYTES = 16  # of one access
Change = Callable[[Value, Value], Value]  # an element, as it is in memory, and a value → the element then


def both(b: Builder, one: Mask, other: Mask) -> Mask:
    """The threads of two masks."""
    return one if other is None else other if one is None else b.and_(one, other)


class Simt(Builder):
    """Code of one phase of a grid. `resident`: blocks side by side; the assembler spills no registers for more of them.
    `predicates`: stores that only some threads do are no branches. `block`: its number, where the caller finds it.
    `parameters`: names of the launch's buffers, in order; `places`: of those in the workspace, with their first bytes.
    `aligned`: buffers begin at multiples of sixteen bytes. `early`: as `Kernel.early`."""

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
        block: Value | None = None,
        parameters: Sequence[str] = (),
        places: Mapping[str, Size] | None = None,
        aligned: bool = True,
        early: Sequence[str] | None = None,
    ) -> None:
        super().__init__(target, symbol, sizes)
        self.warp = target.warp_size
        self.index_kind = index_kind  # of positions and counts: i32 where all of them fit
        self.buffers, self.threads, self.resident = buffers, threads, resident
        self.cluster = cluster  # blocks that run at the same time, and read each other's shared memory
        self.is_vulkan = target.form == "spirv"
        self.predicates, self.aligned = predicates and not self.is_vulkan, aligned
        self._parameters, self._places = {name: place for place, name in enumerate(parameters)}, places or {}
        self.overlaps = early is not None  # the launch may begin before earlier ones have ended
        self._waits = False
        self.numbers: dict[int, str] = {}  # parameters that are no addresses, each with its kind in memory
        self.workspace_memory = WORKSPACE
        self.shared_bytes = 0
        self.has_barrier = False
        self._own_block = block
        self._ids: dict[str, Value] = {}
        self._exchange: int | None = None  # where the memory begins that is used again
        self._predicate: Mask = None  # of threads that store
        self._array_bytes: dict[int, int] = {}  # of shared memory, by their first byte
        self._arrays: set[tuple[int, str]] = set()  # those in use, each with a kind of its elements
        self._words: int | None = None  # an array through which lanes exchange values

    # Where this is.

    def id(self, what: str, kind: str = "i32") -> Value:
        """An `Id`, read once where the function begins."""
        if what not in self._ids:
            self._ids[what] = out = param(f"id.{what}", kind)
            self.prologue.append(Id(out, what))
        return self._ids[what]

    def _wide(self, value: Value) -> Value:
        return self.convert("zext", value, self.index_kind)

    def lane(self) -> Value:
        """Which thread of its warp this is."""
        return self._wide(self.id("lane") if self.target.has_lane_ids else self.and_(self.id("thread"), self.warp - 1))

    def warp_number(self) -> Value:
        """Which warp of its block this is."""
        if self.target.has_lane_ids:
            return self._wide(self.id("warp"))
        return self._wide(self.lshr(self.id("thread"), self.warp.bit_length() - 1))

    def thread(self) -> Value:
        """Which thread of its block this is."""
        if self.target.has_lane_ids:
            return self.add(self.mul(self.warp_number(), self.warp), self.lane())
        return self._wide(self.id("thread"))

    def block_number(self) -> Value:
        """Which block of the grid this is."""
        return self._own_block or self._wide(self.id("block"))

    def cluster_rank(self) -> Value:
        """Which block of its cluster this is."""
        return self.and_(self.block_number(), self.cluster - 1)

    def index(self, number: Number) -> Value:
        """A count or position."""
        return self.const("i64" if is_symsize(number) else self.index_kind, number)

    def below(self, number: Value, count: Number) -> tuple[Value, Value]:
        """A number, or zero where it is not below `count`; and whether it is."""
        inside = self.icmp("slt", number, self.index(count))
        return self.select(inside, number, 0), inside

    # Control flow.

    def where(self, mask: Mask) -> AbstractContextManager[None]:
        """Within, only threads of the mask store."""
        return nullcontext() if mask is None else self.when(mask)

    def where_stored(self, mask: Mask) -> AbstractContextManager[None]:
        """The same where stores to global memory are all there is within. With `predicates` there is no branch: the
        assembler moves no load over one, and what tiles read would come one by one. That takes registers."""
        return self._predicated(mask) if self.predicates else self.where(mask)

    @contextmanager
    def _predicated(self, mask: Mask) -> Iterator[None]:
        assert self._predicate is None
        self._predicate = mask
        yield
        self._predicate = None

    def carried_loop(
        self,
        last: Value | Number,
        carried: Sequence[Value],
        write: Callable[[Value, list[Value]], Sequence[Value]],
        *,
        first: Value | Number = 0,
        step: int = 1,
        guard: bool = False,
    ) -> list[Value]:
        """What `write` writes, for every `step`th turn from `first` to before `last`. It is given the turn, of 64 bits,
        and the values that the loop carries, and returns those of the next turn. `guard`: there may be none."""
        known = set(self.shared)
        begin, end = (each if isinstance(each, Value) else self.const("i64", each) for each in (first, last))
        loop = self.begin(begin, end, step, carried, guard=guard)
        values = loop.end(*write(loop.index, list(loop.values)))
        for each in [*self.shared]:
            if each not in known:
                del self.shared[each]  # what was computed inside is not there after a loop
        return list(values)

    # Memory.

    def runtime_param(self, number: Number) -> Value:
        assert self.sizes is not None
        return param(f"size{self.sizes.slot(number)}")

    def parameter(self, number: int) -> Value:
        """The address of a buffer, by its place among the kernel's parameters."""
        return param(f"b{number}", GLOBAL)

    def pointer(self, name: str) -> Value:
        """The address of a buffer by its name."""
        if name in self._parameters:
            return self.parameter(self._parameters[name])
        return self.workspace(self._places[name])

    def number(self, name: str, kind: str) -> Value:
        """The value of a one-element buffer on the host, which is passed as a parameter."""
        number = self._parameters[name]
        self.numbers[number] = kind
        return self._back(self.convert("trunc", self.taken(number), f"i{8 * element_bytes(kind)}"), kind)

    def workspace(self, offset: Size) -> Value:
        """An address of the memory that the phases of a launch share."""
        return self.element(self.workspace_memory, "i8", self.const("i64", offset) if is_symsize(offset) else offset)

    def load_global(
        self, pointer: Value, at: Value, kind: str, width: int = 1, *, aligned: bool = True, constant: bool = False
    ) -> list[Value]:
        """`width` elements from `at` on. `aligned`: their address is a multiple of their size. `constant`: nobody
        writes there while the phase runs."""
        # Earlier launches may still write there; and loads of constants move past the wait for them, in LLVM and ptxas.
        constant = constant and not self.overlaps
        return self._load(pointer, at, kind, width, MOST_BYTES if aligned else 1, constant)

    def _load(
        self, pointer: Value, at: Value, kind: str, width: int, lanes: int, constant: bool = False
    ) -> list[Value]:
        """In accesses of at most so many lanes."""
        size = element_bytes(kind)
        piece = min(width, lanes, self.target.access_lanes, MOST_BYTES // size)
        elements: list[Value] = []
        for first in range(0, width, piece):
            address = self.element(pointer, kind, self.add(at, first) if first else at)
            vector = self.load(address, kind, piece, align=size * piece, invariant=constant)
            elements += [self.extract(vector, lane) for lane in range(piece)]
        return elements

    def as_bfloats(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """The bits of an even number of float32s rounded to bfloat16, two by one instruction. Where
        `Target.has_bfloat`."""
        rounded: list[Value] = []
        for pair in zip(values[::2], values[1::2], strict=True):
            word = self.reinterpret(self.convert("fptrunc", self.gathered(list(pair)), "bf16"), "i32")
            rounded += (self.convert("trunc", each, "i16") for each in (word, self.lshr(word, 16)))
        return tuple(rounded)

    def store_global(self, pointer: Value, at: Value, values: Sequence[Value], *, aligned: bool = True) -> None:
        """Elements side by side, from `at` on."""
        kind, size = values[0].kind, element_bytes(values[0].kind)
        piece = min(len(values), self.target.access_lanes, MOST_BYTES // size) if aligned else 1
        for first in range(0, len(values), piece):
            address = self.element(pointer, kind, self.add(at, first) if first else at)
            vector = self.gathered(list(values[first : first + piece]))
            self.body.append(Store(vector, address, size * piece, mask=self._predicate))

    def atomic(
        self, pointer: Value, at: Value, kind: str, value: Value, change: Change, plain: str | None = None
    ) -> None:
        """An element becomes what `change` makes of it and `value`, and no other thread changes it meanwhile. Threads
        come in any order. `plain`: what LLVM's `atomicrmw` calls this, where it has a name for it."""
        address = self.element(pointer, kind, at)
        if plain is not None and not (self.is_vulkan and plain == "fadd"):  # an extension that few devices have
            self.body.append(Atomic(plain, address, value))
        elif self.is_vulkan and BITS[kind] < 32:
            self._update_in_word(address, kind, lambda old: change(old, value))
        else:
            self._update(address, f"i{BITS[kind]}", lambda old: self._whole(change(self._back(old, kind), value)))

    def _update_in_word(self, address: Value, kind: str, change: Callable[[Value], Value]) -> None:
        """Change a narrow number by an atomic operation on the word around it."""
        number = self.convert("ptrtoint", address, "i64")
        aligned = self.convert("inttoptr", self.and_(number, -4), GLOBAL)
        shift = self.convert("trunc", self.shl(self.and_(number, 3), 3), "i32")
        others = self.not_(self.shl(self.const("i32", (1 << BITS[kind]) - 1), shift))

        def changed(old: Value) -> Value:
            mine = self.convert("trunc", self.lshr(old, shift), f"i{BITS[kind]}")
            word = self.convert("zext", self._whole(change(self._back(mine, kind))), "i32")
            return self.or_(self.and_(old, others), self.shl(word, shift))

        self._update(aligned, "i32", changed)

    def _update(self, address: Value, kind: str, change: Callable[[Value], Value]) -> None:
        """Replace an integer in memory, only if it is still what the new one was computed from."""

        def attempt(old: Value) -> tuple[Value, list[Value]]:
            new = change(old)
            seen, stored = self.fresh(kind), self.fresh("i1")
            self.body.append(CompareExchange(seen, stored, address, old, new))
            return self.not_(stored), [seen]

        self.repeat([self.load(address, kind)], attempt)

    # Shared memory.

    def shared_array(self, kind: str, length: int) -> int:
        """Room for elements that the threads of a block share: its first byte."""
        first = -(-self.shared_bytes // 16) * 16
        self._array_bytes[first] = element_bytes(kind) * length
        self.shared_bytes = first + max(1, self._array_bytes[first])
        return first

    def exchange_array(self, size: int) -> int:
        """So many bytes to share for a while: the next who asks gets the same ones."""
        if self._exchange is None:
            self._exchange = self.shared_array("i8", 0)
        else:
            self.barrier()  # all have loaded what was there before
        self._array_bytes[self._exchange] = max(self._array_bytes[self._exchange], size)
        self.shared_bytes = max(self.shared_bytes, self._exchange + size)
        return self._exchange

    def load_shared(self, first: int, at: Value, kind: str) -> Value:
        """An element of a `shared_array`."""
        return self.load_shared_vector(first, at, kind, 1)[0]

    def load_shared_vector(self, first: int, at: Value, kind: str, width: int) -> list[Value]:
        """Elements side by side, from one on whose address is a multiple of their size, or of sixteen bytes."""
        return self._load(self.shared_address(first, kind), at, kind, width, 1 if self.is_vulkan else MOST_BYTES)

    def load_cluster(self, first: int, rank: Value, kind: str) -> Value:
        """The first element of a `shared_array` of another block of this cluster."""
        address, where = self.fresh(CLUSTER), self.convert("trunc", rank, "i32")
        self.body.append(Remote(address, self.shared_address(first, kind), where))
        return self.load(address, kind)

    def store_shared(self, first: int, at: Value, value: Value) -> None:
        """Under `where`, by the threads of its mask."""
        self.store(value, self.element(self.shared_address(first, value.kind), value.kind, at))

    def shared_address(self, first: int, kind: str) -> Value:
        """Where elements of a kind are in the block's memory; all kernels of a module use one name for that."""
        self._arrays.add((first, kind))
        if self.is_vulkan:
            return Value(f"@{self.symbol}.shared{first}.{kind}", SHARED)
        return self.element(Value(f"@{SHARED_NAME}", SHARED), "i8", first)

    def shared_arrays(self) -> tuple[SharedArray, ...]:
        if not self.is_vulkan:
            return (SharedArray(SHARED_NAME, "i8", 0),) if self._arrays else ()
        return tuple(
            SharedArray(f"{self.symbol}.shared{at}.{kind}", kind, -(-self._array_bytes[at] // element_bytes(kind)))
            for at, kind in sorted(self._arrays)
        )

    @property
    def shared_size(self) -> int:
        """Bytes of all arrays of shared memory."""
        if not self.is_vulkan:
            return self.shared_bytes
        return sum(array.length * element_bytes(array.kind) for array in self.shared_arrays())

    # Exchange between the threads of a warp and of a block.

    def shuffle_xor(self, value: Value, distance: int) -> Value:
        """The value of the lane whose number differs in the bit `distance`."""
        return self._shuffle(value, "xor", self.const("i32", distance))

    def across_lanes(self, value: Value, join: Callable[[Value, Value], Value], first: int, last: int) -> Value:
        """`value` joined with those of other lanes: `first` apart, then twice as far, and so on up to before `last`."""
        while first < last:
            value, first = join(value, self.shuffle_xor(value, first)), 2 * first
        return value

    def shuffle_up(self, value: Value, distance: int) -> Value:
        """The value of the lane `distance` before this one; any value for the first ones."""
        return self._shuffle(value, "up", self.const("i32", distance))

    def shuffle_from(self, value: Value, lane: Value) -> Value:
        """The value of the lane with this number."""
        return self._shuffle(value, "from", self.convert("trunc", lane, "i32"))

    def _shuffle(self, value: Value, mode: str, lane: Value) -> Value:
        """Word by word."""
        bits, whole = BITS[value.kind], self._whole(value)
        if bits <= 32:
            moved = self._shuffle_word(self.convert("zext", whole, "i32"), mode, lane)
            return self._back(self.convert("trunc", moved, whole.kind), value.kind)
        low = self._shuffle_word(self.convert("trunc", whole, "i32"), mode, lane)
        high = self._shuffle_word(self.convert("trunc", self.lshr(whole, 32), "i32"), mode, lane)
        joined = self.or_(self.convert("zext", low, "i64"), self.shl(self.convert("zext", high, "i64"), 32))
        return self._back(joined, value.kind)

    def _shuffle_word(self, word: Value, mode: str, lane: Value) -> Value:
        if self.is_vulkan and "+shuffle" not in self.target.features.split(","):
            return self._shuffle_in_memory(word, mode, lane)
        out = self.fresh("i32")
        self.body.append(Shuffle(out, word, mode, lane))
        return out

    def _shuffle_in_memory(self, word: Value, mode: str, lane: Value) -> Value:
        mine = self.id("lane")
        if mode == "xor":
            lane = self.xor(mine, lane)
        elif mode == "up":
            lane = self.select(self.icmp("uge", mine, lane), self.sub(mine, lane), 0)
        if self._words is None:
            self._words = self.shared_array("i32", self.threads)
        first = self.mul(self.id("warp"), self.warp)
        self.store_shared(self._words, self.add(first, mine), word)
        self.warp_barrier()
        loaded = self.load_shared(self._words, self.add(first, lane), "i32")
        self.warp_barrier()  # before the next value is there
        return loaded

    def narrow_pair(self, pair: Sequence[Value], kind: str) -> Value:
        """Two float32 rounded to a `kind` of 16 bits, as a word."""
        return self.reinterpret(self.convert("fptrunc", self.gathered(list(pair)), kind), "i32")

    def mma(self, kind: str, a: Sequence[Value], b: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        """A product of matrices, as `ir.loops.Mma` says who has what of them."""
        results = [self.fresh("f32") for _ in sums]
        self.body.append(Mma(tuple(results), kind, tuple(a), tuple(b), tuple(sums)))
        return results

    def load_matrices(self, pointer: Value, *, transposed: bool = False) -> list[Value]:
        """Four words of shared memory, as `ir.loops.LoadMatrix` says who has what of them."""
        results = [self.fresh("i32") for _ in range(4)]
        self.body.append(LoadMatrix(tuple(results), pointer, transposed))
        return results

    def copy_async(self, to: Value, source: Value, mask: Mask = None) -> None:
        """Begin to copy 16 bytes to shared memory. `source` is an address that may be read, whatever the mask says."""
        self.body.append(CopyAsync(to, source, mask))

    def copy_commit(self) -> None:
        self.body.append(CopyCommit())

    def copy_wait(self, pending: int = 0) -> None:
        self.body.append(CopyWait(pending))

    def _whole(self, value: Value) -> Value:
        return self.bits(value) if value.kind.startswith("f") else value

    def _back(self, value: Value, kind: str) -> Value:
        return self.from_bits(value) if kind.startswith("f") else value

    def barrier(self) -> None:
        """What any thread of the block stored before it, every thread may load after it."""
        self.has_barrier = True
        self.body.append(Barrier("block"))

    def warp_barrier(self) -> None:
        """The same for the threads of a warp."""
        self.body.append(Barrier("warp"))

    def cluster_barrier(self) -> None:
        """The same for the threads of all blocks of a cluster and their shared memory."""
        self.has_barrier = True
        self.body.append(Barrier("cluster"))

    def leave_cluster(self) -> None:
        """At the end: no block of a cluster is gone while another reads its shared memory."""
        self.body.append(Barrier("leave"))

    # Launches.

    def wait_for_launches(self) -> None:
        """What earlier launches wrote may be read after it, and what they read may be written. Where no schedule says
        when, it is the first thing."""
        if self.overlaps and not self._waits:
            self._waits = True
            self.body.append(Barrier("earlier"))

    def waiting_body(self) -> list[Node]:
        """The code, which waits first unless it waits somewhere else."""
        return [Barrier("earlier"), *self.body] if self.overlaps and not self._waits else self.body

    # Several grids in one function.

    def follow(self, previous: "Simt") -> None:
        """Use the numbers of threads that `previous` has read, and other names for values."""
        self._ids, self._count = previous._ids, previous._count

    def join(self, others: Sequence["Simt"]) -> None:
        """Take over what the code of others needs, which becomes part of this function."""
        self._waits = True
        for b in others:
            self.numbers |= b.numbers
            self.helpers |= b.helpers
            self._arrays |= b._arrays
            self.shared_bytes = max(self.shared_bytes, b.shared_bytes)
            self.has_barrier |= b.has_barrier
        self.prologue = [node for b in (*others, self) for node in b.prologue]

    def block_of_all(self) -> Value:
        """Which block of the launch this is, whichever grid it is of. It is read where the function begins."""
        if self.index_kind == "i32":
            return self.id("block")
        self.body = self.prologue
        return self._wide(self.id("block"))

    # The function.

    def taken(self, number: int) -> Value:
        """A parameter: an address, or a number."""
        return param(f"b{number}") if number in self.numbers else self.parameter(number)

    def grid_function(self) -> Function:
        """All that was written, as a function."""
        assert self.sizes is not None
        if self.overlaps:
            self.body = [Barrier("later"), *self.waiting_body()]
        sizes = [param(f"size{slot}") for slot in range(len(self.sizes.params))]
        params = [*map(self.taken, range(self.buffers)), WORKSPACE, *sizes]
        function = self.function(self.symbol, params, "grid")
        function.threads, function.resident, function.cluster = self.threads, self.resident, self.cluster
        function.shared, function.features = self.shared_arrays(), self.target.features
        return function

    def lowered(self, function: Function) -> Function:
        """What the target runs, of the function of a thread."""
        return function

    def launched(self, blocks: Size) -> tuple[Size, int, int]:
        """Blocks of a launch, threads of each, and bytes of their shared memory."""
        return blocks, self.threads, self.shared_size
