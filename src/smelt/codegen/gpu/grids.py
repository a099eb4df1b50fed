"""`Grid`: one grid of a kernel. Each schedule has a record of its own for what it decides, which writes the code of a
thread.

    Points(kernel, width=4, vectors=2)     a pointwise kernel: 256 threads a block, eight points each
    grid.write(b)                          the code, by the primitives of `Simt`
"""

from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.ir.products.library_product import LibraryProduct
from smelt.symbolic.shapes import Size

POINT_THREADS = 256
MANY_THREADS = 512  # of a block: larger ones have few registers for each


class Grid:
    """What all grids have."""

    kernel: Kernel
    threads: int  # of a block
    resident = 0  # blocks that a multiprocessor has to run at the same time; 0 for as many as there happen to fit
    padded = False  # whether the last of adjacent points may be none
    cluster = 1  # blocks that run at the same time and read each other's shared memory
    product: LibraryProduct | None = None  # what a library may do instead of this grid and `instead_of - 1` after it
    instead_of = 0
    body: Any  # what writes the code of a thread: a `PhaseBody` names the record that it is for

    @property
    def blocks(self) -> Size:
        raise NotImplementedError

    @property
    def has_predicates(self) -> bool:
        """Whether stores that only some threads do are no branches, which takes registers."""
        return self.threads <= MANY_THREADS

    def builder(
        self, simt: type[Simt], kernel: Kernel, target: Target, symbol: str, sizes: Sizes, index_kind: str, **more: Any
    ) -> Simt:
        """What the code of a thread is written with, for a grid of a kernel. `more` is as `simt` takes it."""
        own: dict[str, Any] = {"threads": self.threads, "cluster": self.cluster, "resident": self.resident}
        b = simt(target, symbol, sizes, index_kind, predicates=self.has_predicates, **own, **more)
        floats = [each.dtype for each in kernel.parameters if each.dtype.is_floating_point]
        b.has_wide_floats = any(dtype.itemsize > 2 for dtype in floats)
        return b

    def write(self, b: Simt) -> None:
        """The code of a thread."""
        self.body(b, self).write()


@dataclass(frozen=True, slots=True)
class KernelGrids:
    """A kernel as grids that run one after the other, and where in the workspace they leave things for each other."""

    kernel: Kernel
    phases: tuple[Grid, ...]
    places: tuple[tuple[str, Size], ...]  # buffers of the workspace, each with its first byte
    workspace: Size
    why_not: tuple[tuple[str, str], ...] = ()  # schedules that it does not have, each with the reason
