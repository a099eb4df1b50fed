"""`Nvptx`: the primitives of GPU schedules for LLVM's NVPTX. The text is that of one thread.

    define ptx_kernel void @k0(ptr addrspace(1) %b0, …, ptr addrspace(1) %workspace, i64 %size0, …)

Sixteen bytes are loaded at a time where they are aligned. The C library is not available, and LLVM's intrinsics for
exp, log and similar functions abort the process: the math is our own.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from smelt.codegen.gpu.simt import GLOBAL, MOST_BYTES, Mask, OneThread, memory_bytes
from smelt.codegen.llvm.builder import LLVM_TYPES, LlvmValue, type_text
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target

# Of LLVM's intrinsics those that it writes out for these chips itself. Others, and any function that is not defined in
# the text, end the process or the assembler.
_KNOWN = re.compile(
    r"llvm\.(nvvm\.[\w.]+|(fma|fabs|sqrt|floor|ceil|trunc|roundeven|copysign|minimum|maximum|[su]min|[su]max|fptosi\.sat)"
    r"(\.[fiv]\d+)+)"
)
_SHARED, _CLUSTER = "ptr addrspace(3)", "ptr addrspace(7)"
_WHOLE_WARP = "i32 -1"
_SHARED_NAME = "@smelt_shared"
_CONSTRAINTS = {"i16": "h", "i32": "r", "i64": "l"}  # of registers, in text of the assembler


def why_not_ptx(text: str) -> str | None:
    """Why LLVM must not compile a text for NVIDIA's GPUs."""
    defined = set(re.findall(r"^define [^@]*@([\w.]+)\(", text, re.MULTILINE))
    called = set(re.findall(r"\bcall [^@\n]*@([\w.]+)\(", text)) | set(
        re.findall(r"^declare [^@\n]*@([\w.]+)\(", text, re.MULTILINE)
    )
    unknown = sorted(name for name in called - defined if not _KNOWN.fullmatch(name))
    return f"no GPU has the function {unknown[0]}" if unknown else None


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
        self._known: dict[str, LlvmValue] = {}
        self._predicate: Mask = None  # of threads that store

    # Where this is.

    def _register(self, name: str) -> LlvmValue:
        if name not in self._known:
            self.declared.add(f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()")
            register = self.fresh("here")
            self.prologue.append(f"{register} = call i32 @llvm.nvvm.read.ptx.sreg.{name}()")
            self._known[name] = LlvmValue(register, "i32")
        return self._known[name]

    def _wide(self, value: LlvmValue) -> LlvmValue:
        return self.convert("zext", value, self.index_kind)

    def lane(self) -> LlvmValue:
        return self._wide(self.and_(self._register("tid.x"), self.warp - 1))

    def warp_number(self) -> LlvmValue:
        return self._wide(self.lshr(self._register("tid.x"), self.warp.bit_length() - 1))

    def thread(self) -> LlvmValue:
        return self._wide(self._register("tid.x"))

    def block_number(self) -> LlvmValue:
        return self._wide(self._register("ctaid.x"))

    # Memory.

    def _store(self, vector: LlvmValue, address: str, align: int) -> None:
        if self._predicate is not None:
            self._store_if(self._predicate, address, vector)
            return
        super()._store(vector, address, align)

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

    def _store_if(self, mask: LlvmValue, address: str, vector: LlvmValue) -> None:
        size = memory_bytes(vector.kind) * vector.lanes
        word = min(size, max(4, memory_bytes(vector.kind)))
        kind = f"i{8 * word}"
        whole = self.op(f"bitcast {vector} to {type_text(kind, size // word)}", kind, size // word)
        words = [self.extract(whole, lane) for lane in range(whole.lanes)]
        if word == 1:
            words = [self.convert("zext", words[0], "i16")]  # a register has no fewer bits
        names = ", ".join(f"${place}" for place in range(2, 2 + len(words)))
        several = f".v{len(words)}" if len(words) > 1 else ""
        text = f"@$0 st.global{several}.b{8 * word} [$1], " + (f"{{{names}}}" if several else names) + ";"
        taken = ",".join(["b", "l", *([_CONSTRAINTS[words[0].kind]] * len(words)), "~{memory}"])
        arguments = ", ".join([str(mask), f"{GLOBAL} {address}", *map(str, words)])
        self.emit(f'call void asm sideeffect "{text}", "{taken}"({arguments})')

    # Exchange between threads.

    def shuffle_xor(self, value: LlvmValue, distance: int) -> LlvmValue:
        return self._word_by_word(value, lambda word: self._shuffle_word(word, "bfly", distance, self.warp - 1))

    def shuffle_up(self, value: LlvmValue, distance: int) -> LlvmValue:
        return self._word_by_word(value, lambda word: self._shuffle_word(word, "up", distance, 0))

    def shuffle_from(self, value: LlvmValue, lane: LlvmValue) -> LlvmValue:
        where = self.convert("trunc", lane, "i32")
        return self._word_by_word(value, lambda word: self._shuffle_word(word, "idx", where, self.warp - 1))

    def _shuffle_word(self, value: LlvmValue, how: str, distance: int | LlvmValue, clamp: int) -> LlvmValue:
        far = distance if isinstance(distance, LlvmValue) else self.const("i32", distance)
        name = f"llvm.nvvm.shfl.sync.{how}.i32"
        self.declared.add(f"declare i32 @{name}(i32, i32, i32, i32)")
        return self.op(f"call i32 @{name}({_WHOLE_WARP}, {value}, {far}, i32 {clamp})", "i32", 1)

    def barrier(self) -> None:
        self.has_barrier = True
        self.declared.add("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        self.emit("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def warp_barrier(self) -> None:
        self.declared.add("declare void @llvm.nvvm.bar.warp.sync(i32)")
        self.emit(f"call void @llvm.nvvm.bar.warp.sync({_WHOLE_WARP})")

    def cluster_barrier(self) -> None:
        self._cluster("arrive")
        self._cluster("wait")

    def leave_cluster(self) -> None:
        self._cluster("arrive.relaxed")  # what was read is there: it was used
        self._cluster("wait")

    def _cluster(self, what: str) -> None:
        self.declared.add(f"declare void @llvm.nvvm.barrier.cluster.{what}()")
        self.emit(f"call void @llvm.nvvm.barrier.cluster.{what}()")

    def load_cluster(self, first: int, rank: LlvmValue, kind: str) -> LlvmValue:
        name = "llvm.nvvm.mapa.shared.cluster"
        self.declared.add(f"declare {_CLUSTER} @{name}({_SHARED}, i32)")
        address, where = self.fresh("p"), self.convert("trunc", rank, "i32")
        self.emit(f"{address} = call {_CLUSTER} @{name}({_SHARED} {self._shared(first)}, {where})")
        return self.op(f"load {LLVM_TYPES[kind]}, {_CLUSTER} {address}, align {memory_bytes(kind)}", kind, 1)

    def load_shared(self, first: int, at: LlvmValue, kind: str) -> LlvmValue:
        address = self._address(self._shared(first), kind, at, _SHARED)
        return self.op(f"load {LLVM_TYPES[kind]}, {_SHARED} {address}, align {memory_bytes(kind)}", kind, 1)

    def load_shared_vector(self, first: int, at: LlvmValue, kind: str, width: int) -> list[LlvmValue]:
        size = memory_bytes(kind)
        piece = min(width, MOST_BYTES // size)
        elements: list[LlvmValue] = []
        for way in range(0, width, piece):
            address = self._address(self._shared(first), kind, self.add(at, way) if way else at, _SHARED)
            vector = self.op(f"load {type_text(kind, piece)}, {_SHARED} {address}, align {size * piece}", kind, piece)
            elements += [self.extract(vector, lane) for lane in range(piece)]
        return elements

    def store_shared(self, first: int, at: LlvmValue, value: LlvmValue) -> None:
        address = self._address(self._shared(first), value.kind, at, _SHARED)
        self.emit(f"store {value}, {_SHARED} {address}, align {memory_bytes(value.kind)}")

    def _shared(self, first: int) -> str:
        """Dynamic shared memory of the block; all kernels of a module use the same name."""
        self.declared.add(f"{_SHARED_NAME} = external addrspace(3) global [0 x i8], align 16")
        return f"getelementptr (i8, {_SHARED} {_SHARED_NAME}, i64 {first})" if first else _SHARED_NAME

    # The function.

    def function(self) -> str:
        assert self.sizes is not None
        taken = [f"{self._taken(number)} noundef %b{number}" for number in range(self.buffers)]
        taken += [f"{GLOBAL} noundef %workspace", *(f"i64 noundef %size{n}" for n in range(len(self.sizes.params)))]
        body = "\n".join(line if line.endswith(":") else f"  {line}" for line in (*self.prologue, *self.lines))
        limit = f'"nvvm.maxntid"="{self.threads}"'
        limit += f' "nvvm.minctasm"="{self.resident}"' if self.resident else ""
        limit += f' "nvvm.cluster_dim"="{self.cluster}"' if self.cluster > 1 else ""
        return f"define ptx_kernel void @{self.symbol}({', '.join(taken)}) {limit} {{\nentry:\n{body}\n  ret void\n}}\n"
