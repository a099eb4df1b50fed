"""`PointsBody` writes a pointwise grid: several vectors per thread, and single points for the remainder.

    cols(j:1000003), 4 at once, 2 vectors   →   reads of both vectors, then each computed and stored;
                                                block 0: its first 3 threads have the last 3 points
"""

from dataclasses import replace

from smelt.codegen.gpu.phase_body import Coordinates, PhaseBody
from smelt.codegen.gpu.simt import Mask
from smelt.ir.kernel import Load, Role, Store
from smelt.ir.loops import Value


class PointsBody(PhaseBody):
    """A phase along points being written."""

    def write(self) -> None:
        if self.plan.vectors > 1 or self._reads_late():
            self._read_all()
        super().write()
        if self.plan.leaves_some:
            self._write_rest()

    def _reads_late(self) -> bool:
        """Whether something is read after something else was stored: neither LLVM nor the assembler moves it up."""
        (stage,) = self.kernel.stages
        first = next((place for place, i in enumerate(stage.body) if isinstance(i, Store)), len(stage.body))
        return any(isinstance(i, Load) for i in stage.body[first:])

    def _read_all(self) -> None:
        """Issue the loads of all vectors of a thread before the first store."""
        (stage,) = self.kernel.stages
        stores = {(i.buffer, i.index) for i in stage.body if isinstance(i, Store)}
        written = {name for name, _ in stores}
        loads: dict[tuple[str, object], Load] = {}
        stored: set[str] = set()
        for i in stage.body:
            if isinstance(i, Store):
                stored.add(i.buffer)  # what is read there after that is what was written
            if not isinstance(i, Load) or i.buffer in stored:
                continue
            # What is updated in place is read where it is written, by no other point.
            if i.buffer not in written or (i.buffer, i.index) in stores:
                loads.setdefault((i.buffer, i.index), i)
        for tile in range(self.plan.vectors):
            where, _ = self._cols(self.b.index(tile))
            for load in loads.values():
                if self.kernel.buffer(load.buffer).role is not Role.SCRATCH:
                    self.registers[load.buffer, load.index, tile] = self._loaded(load, where, tile, once=False)

    def _write_rest(self) -> None:
        b = self.b
        with b.when(b.icmp("eq", b.block_number(), 0)):
            single = replace(self.plan, width=1, vectors=1)
            _RestBody(b, single).write_rest(self.plan.width)


class _RestBody(PhaseBody):
    """The last points, fewer than a vector has."""

    def write_rest(self, width: int) -> None:
        b, count = self.b, self.kernel.col_count
        self.mask = b.icmp("slt", b.thread(), b.index(count % width))
        self.point = b.add(b.index(count - count % width), b.thread())
        self.write()

    def _cols(self, number: Value) -> tuple[Coordinates, Mask]:
        point = self.b.select(self.mask, self.point, 0)
        return self._coordinates(point, self.kernel.cols), self.mask
