"""A model around the executor's C code, as LLVM text: its data, and the functions that the executor and callers need.

    @NAME.data       weights, the state that sessions begin with, the table and plans, one after the other
    @NAME.table      `Table` of csrc/executor/table.h: where in the data each section begins
    @NAME.model      `Model` of csrc/static/static.c
    NAME_run, NAME_init, and smelt_launch, by which the executor calls a kernel by its number
"""

import struct
from collections.abc import Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.layout import ALIGN
from smelt.ir.table.layout import HEADER_WORDS
from smelt.ir.table.records import SECTIONS, TableHeader
from smelt.symbolic.postfix import Op

# What stands at the start of the data until it is put there: LLVM need not read it as text.
MARK = b"smelt: weights\x00\x01\x02\x03\x04\x05\x06\x07are put here\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"


@dataclass(frozen=True, slots=True)
class ModelData:
    """The data of an object file, and where its parts begin."""

    constants: bytes
    state: bytes
    table: bytes
    plans: Sequence[bytes | None]  # of each variant, if it is known before it runs

    @property
    def state_at(self) -> int:
        return _aligned(len(self.constants))

    @property
    def table_at(self) -> int:
        return _aligned(self.state_at + len(self.state))

    def content(self) -> bytes:
        content = self.constants + bytes(self.state_at - len(self.constants)) + self.state
        return content + bytes(self.table_at - len(content)) + self.table + b"".join(filter(None, self.plans))

    def plan_places(self) -> list[int | None]:
        """Where the plan of each variant begins."""
        places: list[int | None] = []
        at = self.table_at + len(self.table)
        for plan in self.plans:
            places.append(None if plan is None else at)
            at += len(plan or b"")
        return places

    def sections(self) -> dict[str, tuple[int, int]]:
        """Of each section of the table its first word and its records."""
        words = struct.unpack_from(f"<{HEADER_WORDS}q", self.table)[len(TableHeader._fields) :]
        return dict(zip(SECTIONS, zip(words[::3], words[1::3], strict=True), strict=True))

    def ops(self) -> set[Op]:
        """The instructions of the table's expressions."""
        first, count = self.sections()["instructions"]
        return {Op(op) for op, _ in struct.iter_unpack("<qq", self.table[8 * first : 8 * first + 16 * count])}


def _aligned(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


def model_text(name: str, data: ModelData, rank: int, kernels: Sequence[str], raised: Sequence[int]) -> str:
    """`rank`: how many sizes the interface has room for in each tensor; `kernels`: the functions of the table's;
    `raised`: of each variant the code of the error that it raises."""

    def at(offset: int) -> str:
        return f"ptr getelementptr (i8, ptr @{name}.data, i64 {offset})"

    mark, rest = "".join(f"\\{byte:02x}" for byte in MARK), len(data.content()) - len(MARK)
    sections = data.sections().values()
    counts = ", ".join(f"i64 {count}" for _, count in (*sections, (0, 0)))  # there are no objects
    places = ", ".join(at(data.table_at + 8 * first) for first, _ in sections)
    blob = TableHeader(*struct.unpack_from(f"<{len(TableHeader._fields)}q", data.table)).blob
    values = f"[{len(sections) + 1} x i64] [{counts}], [{len(sections)} x ptr] [{places}]"
    plans = ", ".join("ptr null" if place is None else at(place) for place in data.plan_places())
    codes = f"[{len(raised)} x i32] [{', '.join(f'i32 {code}' for code in raised)}]"
    data_places = f"ptr @{name}.table, {at(0)}, {at(data.state_at)}, ptr @{name}.raised, ptr @{name}.plans"
    model = f"{data_places}, i64 {len(data.state)}, i64 {rank}"
    labels = " ".join(f"i64 {number}, label %launch{number}" for number in range(len(kernels)))
    launches = "".join(
        f"launch{number}:\n  call void @{kernel}(ptr %buffers, i64 1, ptr %workspace)\n  ret void\n"
        for number, kernel in enumerate(kernels)
    )
    return f"""
@{name}.data = internal constant <{{ [{len(MARK)} x i8], [{rest} x i8] }}>
  <{{ [{len(MARK)} x i8] c"{mark}", [{rest} x i8] zeroinitializer }}>, align {ALIGN}
@{name}.table = internal constant {{ ptr, ptr, [{len(sections) + 1} x i64], [{len(sections)} x ptr] }}
  {{ {at(data.table_at)}, {at(data.table_at + blob)}, {values} }}
@{name}.raised = internal constant {codes}
@{name}.plans = internal constant [{len(data.plans)} x ptr] [{plans}]
@{name}.model = internal constant {{ ptr, ptr, ptr, ptr, ptr, i64, i64 }} {{ {model} }}

declare i32 @smelt_run_model(ptr, ptr, ptr, ptr)
declare void @smelt_reset_model(ptr, ptr, ptr, ptr, i64)

define i32 @{name}_run(ptr %session, ptr %inputs, ptr %outputs) {{
  %code = call i32 @smelt_run_model(ptr @{name}.model, ptr %session, ptr %inputs, ptr %outputs)
  ret i32 %code
}}
define void @{name}_init(ptr %session, ptr %state, ptr %memory, i64 %bytes) {{
  call void @smelt_reset_model(ptr @{name}.model, ptr %session, ptr %state, ptr %memory, i64 %bytes)
  ret void
}}
define void @smelt_launch(i64 %number, ptr %buffers, ptr %workspace) {{
  switch i64 %number, label %none [ {labels} ]
{launches}none:
  unreachable
}}
"""
