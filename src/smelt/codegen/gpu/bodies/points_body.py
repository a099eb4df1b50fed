"""`Points`: a pointwise kernel in one line. `PointsBody` writes its grid: several vectors a thread, and single points
for the remainder.

    cols(j:1000003), 4 at once, 2 vectors   →   reads of both vectors, then each computed and stored;
                                                block 0: its first 3 threads have the last 3 points
"""

from dataclasses import replace

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.grids import POINT_THREADS, Grid
from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.loops.scalars import from_memory
from smelt.ir.kernel import Kernel, Load, Role, Store
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize


@dataclass(frozen=True, slots=True)
class Points(Grid):
    """All points in one line. A thread takes `width` adjacent ones together, `vectors` times."""

    kernel: Kernel  # without rows
    width: int
    vectors: int = 1
    threads: int = POINT_THREADS

    @property
    def leaves_some(self) -> bool:
        """Whether vectors leave a few for single ones."""
        return len(self.kernel.cols) == 1 and not is_multiple(self.kernel.col_count, self.width)

    @property
    def blocks(self) -> Size:
        return -(-self.kernel.col_count // (self.threads * self.width * self.vectors))


class PointsBody(PhaseBody, of=Points):
    """A grid along points being written."""

    grid: Points
    keeps_loads = True

    def __init__(self, b: Simt, grid: Points) -> None:
        super().__init__(b, grid, grid.kernel.cols[-1] if grid.kernel.cols else None, grid.width)
        (self.stage,) = grid.kernel.stages

    def write(self) -> None:
        if self.grid.vectors > 1 or self._reads_late():
            self._read_all()
        for tile in range(self.grid.vectors):
            self.values = {}
            self.run(self.stage.body, *self._cols(tile), tile)
        if self.grid.leaves_some:
            self._write_rest()

    def _cols(self, tile: int) -> tuple[Coordinates, Mask]:
        """The first point of a thread's vector, and whether it has one. Where vectors are whole rows apart, they have
        the same col: what is the same in all rows is then loaded once."""
        b, grid = self.b, self.grid
        axes = grid.kernel.cols
        if tile and len(axes) == 2 and not is_symsize(grid.kernel.col_count):
            step = grid.threads * grid.width
            if axes[1].size and not step % axes[1].size and not grid.kernel.col_count % (step * grid.vectors):
                where, _ = self._cols(0)
                return {**where, axes[0].name: b.add(where[axes[0].name], tile * (step // axes[1].size))}, None
        block = b.block_number()
        if grid.vectors > 1:
            block = b.add(b.mul(block, grid.vectors), b.index(tile))
        thread = b.add(b.mul(block, grid.threads), b.thread())
        col = b.mul(thread, grid.width) if grid.width > 1 else thread
        count, mask = grid.kernel.col_count, None
        if is_symsize(count) or count % (grid.threads * grid.width * grid.vectors):
            col, mask = b.below(col, count - count % grid.width if grid.leaves_some else count)
        return self._coordinates(col, grid.kernel.cols), mask

    def _reads_late(self) -> bool:
        """Whether something is read after something else was stored: neither LLVM nor the assembler moves it up."""
        first = next((place for place, i in enumerate(self.stage.body) if isinstance(i, Store)), len(self.stage.body))
        return any(isinstance(i, Load) for i in self.stage.body[first:])

    def _read_all(self) -> None:
        """Issue the loads of all vectors of a thread before the first store. What many points share, and may be much of
        one vector, is read where it is used: it is in the cache."""
        axes = {axis.name for axis in self.grid.kernel.cols}
        stores = {(i.buffer, i.index) for i in self.stage.body if isinstance(i, Store)}
        written = {name for name, _ in stores}
        loads: dict[tuple[str, object], Load] = {}
        stored: set[str] = set()
        for i in self.stage.body:
            if isinstance(i, Store):
                stored.add(i.buffer)  # what is read there after that is what was written
            if not isinstance(i, Load) or i.buffer in stored:
                continue
            if self.grid.vectors == 1 and not axes <= i.index.axes:
                continue
            # What is updated in place is read where it is written, by no other point.
            if i.buffer not in written or (i.buffer, i.index) in stores:
                loads.setdefault((i.buffer, i.index), i)
        for tile in range(self.grid.vectors):
            where, _ = self._cols(tile)
            for load in loads.values():
                buffer = self.kernel.buffer(load.buffer)
                if buffer.role is not Role.SCRATCH:
                    # The assembler moves reads of constant memory down to their uses, behind the stores.
                    constant = buffer.role is Role.INPUT and self.grid.vectors > 1
                    raws = self._load(load.buffer, load.index, where, constant=constant)
                    values = tuple(from_memory(self.b, raw, buffer.dtype) for raw in raws)
                    self.registers[load.buffer, load.index, tile] = values

    def _write_rest(self) -> None:
        """The last points, fewer than a vector has, by threads of the first block."""
        b, whole = self.b, self.kernel.col_count
        rest = whole % self.width
        with b.when(b.icmp("eq", b.block_number(), 0)):
            mask = b.icmp("slt", b.thread(), b.index(rest))
            point = b.select(mask, b.add(b.index(whole - rest), b.thread()), 0)
            single = PointsBody(b, replace(self.grid, width=1))
            single.run(self.stage.body, self._coordinates(point, self.kernel.cols), mask)
