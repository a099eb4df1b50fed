"""What a launch must know of a kernel's machine code, whichever target it is for.

    a CPU's    one function, and how much workspace each thread of it needs
    a GPU's    grids that run one after the other, and the workspace they share
"""

from typing import Any, Protocol

from smelt.base.fast_dataclass import dataclass
from smelt.ir.products.library_product import LibraryCall
from smelt.symbolic.shapes import Size


@dataclass(frozen=True, slots=True)
class GridPhase:
    """One grid of a kernel for a GPU; those of a kernel run one after the other."""

    symbol: str
    blocks: Size
    threads: int  # of a block
    shared_bytes: int
    has_barrier: bool
    product: LibraryCall | None = None
    overlaps: bool = False  # it waits for earlier launches, and may begin before they have ended


class KernelCode(Protocol):
    """The machine code of a kernel, just built or read from the cache. Its sizes are its last buffer, if it has any."""

    @property
    def symbol(self) -> str: ...
    @property
    def buffers(self) -> int: ...
    @property
    def size_count(self) -> int: ...
    @property
    def numbers(self) -> bytes:
        """Of each buffer how many bytes a number has that the host reads; none where no buffer is such a number."""

    @property
    def per_thread_workspace(self) -> Size: ...
    @property
    def phases(self) -> tuple[GridPhase, ...]: ...
    @property
    def workspace(self) -> Size: ...
    @property
    def loaded(self) -> Any:
        """What keeps it where it is."""

    def address(self, symbol: str, /) -> int:
        """Of a function."""
