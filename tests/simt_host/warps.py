"""GPU schedules on the host: rewrites the function of one thread to that of one warp, whose threads are lanes.

    define void @k0(ptr %buffers, ptr %workspace, i64 %block, i64 %warp, ptr %shared)

A value that differs between the threads of a warp becomes a vector with a lane per thread: the lane's number, what was
loaded at an address that differs, and what is computed from these. A branch that only some threads take becomes
straight-line code whose stores have a mask. Atomic operations and calls are done lane by lane, in a loop.

So every schedule runs on machines without a GPU. The caller runs the warps of a block one after another, each up to its
next barrier (`csrc/gpu/host_grid.c`). It is written for correctness, not speed.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from smelt.codegen.cpu.target import describe_host
from smelt.codegen.gpu.gpu_generator import GpuGenerator
from smelt.codegen.gpu.simt import SHARED_NAME, WORKSPACE, Mask, Simt, both
from smelt.codegen.llvm import compile as llvm_compile
from smelt.codegen.loops import builder
from smelt.codegen.loops.builder import BUFFERS, TRUE, Builder, param
from smelt.codegen.loops.scalars import cast
from smelt.device import Target
from smelt.ir import loops
from smelt.ir.loops import CompareExchange, For, Function, If, Node, Repeat, Value, walk
from smelt.symbolic.shapes import Size
from smelt.torch_abi.symbols import SIMT_BARRIER

MMA_WARP = 32  # threads that multiply matrices together
_BLOCK, _WARP = param("block"), param("warp")
_SHARED = param("shared", "ptr")  # of a launched block, which is a whole cluster
_PARAMS = (BUFFERS, builder.WORKSPACE, _BLOCK, _WARP, _SHARED)


def describe_host_warps(name: str, warp: int, cluster: int = 1) -> Target:
    """The host as a GPU with so many threads in a warp, and at most so many blocks in a cluster."""
    return replace(
        describe_host(),
        name=name,
        warp_size=warp,
        cluster_blocks=cluster,
        multiplies_matrices=warp == MMA_WARP,
        access_lanes=1,
        fma_clobbers_addend=False,
        cheap_interleave=False,
        has_narrowing_add=False,
        has_scalef=False,
    )


class HostSimt(Simt):
    """Writes the function of a thread, which is then rewritten to that of a warp."""

    @property
    def shared_apart(self) -> int:
        """Bytes between the shared memory of two blocks of a cluster."""
        return -(-self.shared_bytes // 16) * 16

    def narrow_pair(self, pair: Sequence[Value], kind: str) -> Value:
        dtype = torch.float16 if kind == "f16" else torch.bfloat16
        bits = [self.convert("bitcast", cast(self, each, torch.float32, dtype), "i16") for each in pair]
        halves = [self.convert("zext", each, "i32") for each in bits]
        return self.or_(halves[0], self.shl(halves[1], 16))

    def lowered(self, function: Function) -> Function:
        return warp_function(self, function)

    def launched(self, blocks: Size) -> tuple[Size, int, int]:
        """On the host a block is a whole cluster."""
        if self.cluster == 1:
            return super().launched(blocks)
        return blocks // self.cluster, self.threads * self.cluster, self.shared_apart * self.cluster


class HostGenerator(GpuGenerator):
    """For the processor this runs on: so that GPU schedules run where there is no GPU."""

    simt = HostSimt
    load = staticmethod(llvm_compile.load)
    assemble = staticmethod(llvm_compile.assemble_module)


def warp_function(source: HostSimt, function: Function) -> Function:
    """The function of one warp. A launched block is a whole cluster: the warps of all its blocks, whose shared
    memories are consecutive."""
    warp = _Warp(source)
    warp.bind_params(function.params)
    warp.body(function.body)
    return warp.b.function(function.name, _PARAMS, "entry")


class _Warp:
    """A function being rewritten. `values`: what has been defined, as scalars where all threads have the same."""

    def __init__(self, source: HostSimt) -> None:
        self.source = source
        self.b = b = Builder(source.target, source.symbol)
        self.values: dict[str, Value] = {}
        self.mask: Mask = None  # of the threads that are here
        self.lane: Value | None = None  # of the thread whose code is written, where that is done one by one
        block, warp = (b.convert("trunc", each, "i32") for each in (_BLOCK, _WARP))
        self.rank, shared = b.const("i32", 0), _SHARED
        if source.cluster > 1:
            warps = source.threads // source.warp
            self.rank, warp = b.lshr(warp, warps.bit_length() - 1), b.and_(warp, warps - 1)
            block = b.add(b.mul(block, source.cluster), self.rank)
            shared = self._of_block(shared, self.rank)
        self.ids = {"block": block, "warp": warp, "lane": b.iota("i32", range(source.warp))}
        self.values[f"@{SHARED_NAME}"] = shared

    def bind_params(self, params: Sequence[Value]) -> None:
        """Buffers, of each kernel of a group, and those of them that are numbers; the workspace; the array of sizes."""
        b, place = self.b, params.index(WORKSPACE)
        self.values[WORKSPACE.name] = builder.WORKSPACE
        for number, each in enumerate(params[:place]):
            value = b.load_pointer(number)
            if each.kind == "i64":
                loaded = b.load(value, self.source.numbers[number % self.source.buffers])
                value = b.convert("zext", b.bits(loaded) if loaded.kind.startswith("f") else loaded, "i64")
            self.values[each.name] = value
        for number, each in enumerate(params[place + 1 :]):
            self.values[each.name] = b.load(b.element(b.load_pointer(place), "i64", number), "i64")

    def _bind(self, names: Sequence[Value], values: Sequence[Value]) -> None:
        self.values |= {name.name: value for name, value in zip(names, values, strict=True)}

    def value(self, value: Value) -> Value:
        if value.number is not None:
            return value
        rewritten = self.values[value.name]
        return rewritten if self.lane is None else self.b.extract(rewritten, self.lane)

    def alike(self, values: Sequence[Value]) -> list[Value]:
        """All with as many lanes as the widest."""
        operands = [self.value(each) for each in values]
        lanes = max([each.lanes for each in operands], default=1)
        return [self.b.splat(each, lanes) for each in operands]

    def vectors(self, values: Sequence[Value]) -> list[Value]:
        """All with a lane per thread, unless one thread's code is written."""
        lanes = self.source.warp if self.lane is None else 1
        return [self.b.splat(self.value(each), lanes) for each in values]

    @contextmanager
    def _within(self, mask: Mask) -> Iterator[None]:
        outer, self.mask = self.mask, mask
        yield
        self.mask = outer

    def body(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if self.lane is None and _is_done_by_lane(node):
                self._by_lane(node)
            else:
                self._node(node)

    def _by_lane(self, node: Node) -> None:
        """Once for each of the threads that are here."""
        b, mask = self.b, self.mask
        loop = b.begin(b.const("i64", 0), b.const("i64", self.source.warp), 1, (), guard=False)
        with nullcontext() if mask is None else b.when(b.extract(mask, loop.index)), self._within(None):
            self.lane = loop.index
            self._node(node)
            self.lane = None
        loop.end()

    def _node(self, node: Node) -> None:
        b = self.b
        match node:
            case loops.Compute(out, op, operands, flags):
                args = self.alike(operands)
                self.values[out.name] = b.compute(op, out.kind, args[0].lanes, *args, flags=flags)
            case loops.Convert(out, op, value):
                source = self.value(value)
                self.values[out.name] = converted = b.fresh(out.kind, source.lanes)
                b.body.append(loops.Convert(converted, op, source))
            case loops.Id(out, what):
                self.values[out.name] = self.ids[what]
            case loops.Address(out, base, kind, offset):
                pointer, by = self.value(base), self.value(offset)
                self.values[out.name] = b.element(pointer, kind, b.splat(by, max(pointer.lanes, by.lanes)))
            case loops.Alloc(out, kind, length, align):  # for each thread
                place = b.stack(out.name[1:], kind, length * self.source.warp, align)
                each = b.iota("i64", [length * lane for lane in range(self.source.warp)])
                self.values[out.name] = b.element(place, kind, each)
            case loops.Load(out, pointer, align):
                where = self.value(pointer)
                self.values[out.name] = b.load(where, out.kind, where.lanes, align=align)
            case loops.Store(value, pointer, align, _, mask):
                here = both(self.b, self.mask, mask and self.value(mask))
                where, stored = self.alike((pointer, value)) if here is None else self.vectors((pointer, value))
                b.body.append(loops.Store(stored, where, align, mask=here and b.splat(here, where.lanes)))
            case loops.Atomic(op, pointer, value):
                b.body.append(loops.Atomic(op, self.value(pointer), self.value(value)))
            case CompareExchange(seen, stored, pointer, expected, new):
                results = b.fresh(seen.kind), b.fresh("i1")
                b.body.append(CompareExchange(*results, *map(self.value, (pointer, expected, new))))
                self._bind((seen, stored), results)
            case loops.Call(out, str(name), operands):
                self._call(out, name, self.alike(operands))
            case loops.Shuffle(out, value, mode, lane):
                self.values[out.name] = self._shuffled(self.value(value), mode, self.value(lane))
            case loops.Barrier(scope):
                if scope in ("block", "cluster"):  # a warp is a vector, and shared memory stays to the end
                    b.call(SIMT_BARRIER)
            case loops.Remote(out, pointer, rank):
                self.values[out.name] = self._of_block(self.value(pointer), b.sub(self.value(rank), self.rank))
            case loops.Mma():
                self._mma(node)
            case loops.LoadMatrix():
                self._load_matrix(node)
            case loops.CopyAsync():
                self._copy(node)
            case loops.CopyCommit() | loops.CopyWait():
                pass  # copies are done where they begin
            case For():
                self._for(node)
            case Repeat():
                self._repeat(node)
            case If():
                self._if(node)
            case _:
                raise AssertionError(f"no GPU schedule has {type(node).__name__}")

    def _of_block(self, shared: Value, rank: Value) -> Value:
        """The same place in the shared memory of a block so many behind."""
        by = self.b.mul(self.b.convert("sext", rank, "i64"), self.source.shared_apart)
        return self.b.element(shared, "i8", by)

    def _call(self, out: Value | None, name: str, args: Sequence[Value]) -> None:
        if out is None:
            self.b.call(name, *args)
            return
        lanes = args[0].lanes if args else 1
        calls = [[self.b.extract(each, lane) for each in args] for lane in range(lanes)]
        self.values[out.name] = self.b.gathered([self.b.call(name, *each, result=out.kind) for each in calls])

    def _shuffled(self, value: Value, mode: str, lane: Value) -> Value:
        b, lanes = self.b, range(self.source.warp)
        if value.lanes == 1:
            return value
        if mode == "from":
            if lane.lanes == 1:
                return b.extract(value, lane)
            return b.gathered([b.extract(value, b.extract(lane, each)) for each in lanes])
        assert isinstance(lane.number, int)
        by = lane.number
        return b.permute(value, [each ^ by if mode == "xor" else max(each - by, 0) for each in lanes])

    def _mma(self, node: loops.Mma) -> None:
        """Term by term: each lane gets the factors of its four sums from the lanes that have them."""
        b, lanes = self.b, range(self.source.warp)
        assert len(lanes) == MMA_WARP and self.lane is None
        a, other = ([self._halves(word, node.kind) for word in self.vectors(words)] for words in (node.a, node.b))
        sums = self.vectors(node.sums)
        for later, place, half in itertools.product(range(2), range(4), range(2)):
            places = [lane // 4 * 4 + place for lane in lanes]
            rows = [b.permute(a[2 * later + down][half], places) for down in range(2)]
            from_cols = [[8 * (lane % 4) + 4 * col + place for lane in lanes] for col in range(2)]
            cols = [b.permute(other[later][half], each) for each in from_cols]
            sums = [b.fma(rows[at // 2], cols[at % 2], total) for at, total in enumerate(sums)]
        self._bind(node.results, sums)

    def _load_matrix(self, node: loops.LoadMatrix) -> None:
        b, lanes = self.b, range(self.source.warp)
        assert len(lanes) == MMA_WARP and self.lane is None
        (rows,) = self.vectors((node.pointer,))
        for number, result in enumerate(node.results):
            if not node.transposed:
                own = b.permute(rows, [8 * number + lane // 4 for lane in lanes])
                at = b.element(own, "i32", b.iota("i32", [lane % 4 for lane in lanes]))
                self.values[result.name] = b.load(at, "i32", len(lanes), align=4)
                continue
            halves = []
            for more in range(2):
                own = b.permute(rows, [8 * number + lane % 4 * 2 + more for lane in lanes])
                at = b.element(own, "i16", b.iota("i32", [lane // 4 for lane in lanes]))
                halves.append(b.convert("zext", b.load(at, "i16", len(lanes), align=2), "i32"))
            self.values[result.name] = b.or_(halves[0], b.shl(halves[1], 16))

    def _copy(self, node: loops.CopyAsync) -> None:
        b = self.b
        to, source = self.vectors((node.to, node.source))
        here = self.mask and b.splat(self.mask, to.lanes)
        for word in range(4):
            further = b.const("i64", word, to.lanes)
            value = b.load(b.element(source, "i32", further), "i32", to.lanes, align=4)
            if node.mask is not None:
                value = b.select(b.splat(self.value(node.mask), to.lanes), value, 0)
            b.body.append(loops.Store(value, b.element(to, "i32", further), 4, mask=here))

    def _halves(self, word: Value, kind: str) -> tuple[Value, Value]:
        """The two narrow floats of each word, as f32."""
        b = self.b
        if kind == "bf16":
            return b.from_bits(b.shl(word, 16)), b.from_bits(b.and_(word, -0x10000))
        pair = (b.convert("trunc", word, "i16"), b.convert("trunc", b.lshr(word, 16), "i16"))
        low, high = [b.convert("fpext", b.convert("bitcast", each, "f16"), "f32") for each in pair]
        return low, high

    # Control flow. What a loop carries has a lane per thread.

    def _for(self, node: For) -> None:
        b, (first, last) = self.b, map(self.value, (node.first, node.last))
        loop = b.begin(first, last, node.step, self.vectors(node.starts), guard=node.may_skip)
        self._bind((node.index, *node.carried), (loop.index, *loop.values))
        self.body(node.body)
        self._bind(node.results, loop.end(*self.vectors(node.yields)))

    def _repeat(self, node: Repeat) -> None:
        """Until no thread goes on; those that do not keep what they have."""
        b = self.b

        def attempt(active: Value, *carried: Value) -> tuple[Value, list[Value]]:
            self._bind(node.carried, carried)
            with self._within(active if self.lane is None else None):
                self.body(node.body)
            yields = [b.select(active, *each) for each in zip(self.vectors(node.yields), carried, strict=True)]
            (goes_on,) = self.vectors((node.condition,))
            following = b.and_(active, goes_on)
            return b.reduce_lanes("or", following), [following, *yields]

        begins = [b.splat(self.mask or TRUE, self.source.warp if self.lane is None else 1)]
        self._bind(node.results, b.repeat([*begins, *self.vectors(node.starts)], attempt)[1:])

    def _if(self, node: If) -> None:
        b, condition = self.b, self.value(node.condition)
        branch = If(condition, [], [])
        ways = ((node.then, node.then_values, branch.then), (node.otherwise, node.else_values, branch.otherwise))
        if condition.lanes == 1:
            outer, values_of_ways = b.body, list[list[Value]]()
            for body, results, b.body in ways:
                self.body(body)
                values_of_ways.append([self.value(each) for each in results])
            lanes = [max(one.lanes, other.lanes) for one, other in zip(*values_of_ways, strict=True)]
            for values, (*_, b.body) in zip(values_of_ways, ways, strict=True):
                values[:] = map(b.splat, values, lanes)
            b.body = outer
            branch.then_values, branch.else_values = map(tuple, values_of_ways)
            branch.results = tuple([b.fresh(each.kind, each.lanes) for each in branch.then_values])
            b.body.append(branch)
            self._bind(node.results, branch.results)
            return
        chosen = []
        for (body, results, _), mask in zip(ways, (condition, b.not_(condition)), strict=True):
            with self._within(both(self.b, self.mask, mask)):
                self.body(body)
            chosen.append(self.vectors(results))
        self._bind(node.results, [b.select(condition, *each) for each in zip(*chosen, strict=True)])


def _is_done_by_lane(node: Node) -> bool:
    """Whether threads of a warp do this one after the other. Loops that exchange a value in memory until no other
    thread has changed it have no results that are used."""
    if isinstance(node, Repeat):
        return any(isinstance(each, CompareExchange) for each in walk(node.body))
    return isinstance(node, loops.Atomic) or (isinstance(node, loops.Call) and node.out is None)
