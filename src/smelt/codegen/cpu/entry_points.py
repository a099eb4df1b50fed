"""The functions of one kernel: the entry that callers use, and the part that one thread runs.

    k0(buffers, threads, workspace)     smelt_parallel_for(k0.part, …), then for reductions over rows k0.finish
      k0.part(…, first, last, ends)     the points first up to last, in a workspace of its own

`smelt_parallel_for` is C (`csrc/executor/parallel.c`): it divides the points into chunks and runs each on some thread.
"""

from collections.abc import Callable
from dataclasses import field

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import MINE
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.builder import BUFFERS, THREADS, WORKSPACE, Builder, Term, param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.symbolic.shapes import Size
from smelt.torch_abi.symbols import PARALLEL_FOR

ENTRY = (BUFFERS, THREADS, WORKSPACE)
PART = (BUFFERS, MINE, param("first"), param("last"), param("ends", "i1"))


def params(text: str) -> tuple[Value, ...]:
    """The parameters of a function, from "ptr left, i64 steps"."""
    return tuple([param(name, kind) for kind, name in map(str.split, text.split(", "))])


@dataclass(slots=True)
class KernelFunctions:
    """The functions of a kernel under the name `symbol`, being written, with the helpers that they call."""

    symbol: str
    target: Target
    sizes: Sizes
    functions: list[Function] = field(default_factory=list)
    helpers: dict[str, Function] = field(default_factory=dict)

    def begin(self, symbol: str = "") -> Builder:
        """One more function, whose tables have the name `symbol`."""
        return Builder(self.target, symbol or self.symbol, self.sizes, self.helpers)

    def add(self, b: Builder, name: str, params: tuple[Value, ...]) -> None:
        self.functions.append(b.function(f"{self.symbol}.{name}", params))

    def write(self, name: str, params: tuple[Value, ...], write: Callable[[Builder], None]) -> None:
        """One more function, whose body `write` writes."""
        b = self.begin()
        write(b)
        self.add(b, name, params)

    def end(
        self, most: Term, units: Term, workspace: Size, *, b: Builder | None = None, part: Value | None = None,
        finish: bool = False,
    ) -> EntryCode:  # fmt: skip
        """With the entry, which `b` has begun: at most `most` threads run the `part`s of the units, each with its own
        workspace; then `finish`, if any, is given the number of parts."""
        b = b or self.begin()
        part = part or Value(f"@{self.symbol}.part", "ptr")
        chunks = b.call(PARALLEL_FOR, part, BUFFERS, WORKSPACE, THREADS, most, units, workspace, result="i64")
        if finish:
            b.call(f"{self.symbol}.finish", BUFFERS, WORKSPACE, chunks)
        self.functions.append(b.function(self.symbol, ENTRY, "entry"))
        return EntryCode(tuple(self.functions), tuple(self.helpers.values()), workspace)
