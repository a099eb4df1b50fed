"""Running a kernel program: `Program` + built kernels → a callable from flat tensors to flat outputs.

The steps become a table (`runtime/program/flatten.py`) that `_native.Runner` goes through in one call, without
Python between them where PyTorch's C interface has the operators. A table out of the disk cache is run as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt import _native
from smelt.base.errors import UnexpectedResult
from smelt.base.torch_originals import BASE
from smelt.ir.program import Program
from smelt.ir.table.read import ProgramReader, read_program
from smelt.ir.table.records import ProgramTable
from smelt.ir.tensorspec import WORKSPACE
from smelt.runtime.cuda.graph_recorder import RECORDERS
from smelt.runtime.cuda.graph_use import report
from smelt.runtime.cuda.memory import or_spare
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.flatten import BuiltKernel, FlatTable, flatten
from smelt.runtime.program.profile import note
from smelt.symbolic.shapes import Shape
from smelt.torch_abi.aoti_shims import connect

# Where one of these returns something true, somebody looks at what operators are called, and Python calls them.
_WATCHERS = (torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled)


class Executable:
    """A program bound to its kernels; call `run` with the program's inputs, in order.

    If it is `consuming`, `run` takes them in a list instead, which it empties, and lets each go after its last use.
    """

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, BuiltKernel],
        threads: int = 0,
        keep_alive: Any = None,
        *,
        consuming: bool = False,
        arenas: Arenas | None = None,
        cuda_graphs: str = "never",
    ) -> None:
        connect()
        flat = flatten(program, kernels, consuming)
        self._bind(flat, program, threads, keep_alive, arenas if arenas is not None else Arenas(), cuda_graphs)

    @classmethod
    def of_table(
        cls,
        flat: FlatTable,
        threads: int,
        keep_alive: Any,
        arenas: Arenas,
        cuda_graphs: str,
        acquire: Callable[[], list[torch.Tensor]] | None = None,
        sizes: tuple[Any, ...] | None = None,
    ) -> "Executable":
        """A program that was flattened before. `acquire` acquires its arena, if the table need not be asked. `sizes`:
        what differs between calls."""
        connect()
        executable = cls.__new__(cls)
        executable._bind(flat, None, threads, keep_alive, arenas, cuda_graphs, acquire, sizes)
        return executable

    def _bind(
        self,
        flat: FlatTable,
        program: Program | None,
        threads: int,
        keep_alive: Any,
        arenas: Arenas,
        cuda_graphs: str,
        acquire: Callable[[], list[torch.Tensor]] | None = None,
        sizes: tuple[Any, ...] | None = None,
    ) -> None:
        self.flat = flat
        self.program = program  # None if the table came without it
        self.keep_alive = keep_alive  # owns the machine code
        reader = ProgramReader(flat.table, flat.objects)
        program_record = reader.program
        if acquire is None:
            acquire = arenas.acquirer(program_record.arena_bytes, reader.arena_devices(), reader.arena_tensors)
        self.run = _native.Runner(
            flat.table,
            flat.objects,
            threads=torch.get_num_threads if threads == 0 else lambda: threads,
            acquire=acquire,
            release=arenas.release,
            allocate=_allocate,
            view=_view,
            fit=fit,
            watchers=_WATCHERS,
            recorder=RECORDERS[cuda_graphs],
            sizes=sizes,
        )
        self.run.__dict__["executable"] = self
        self.run.__dict__["writes_from"] = None if program_record.writes_from < 0 else program_record.writes_from
        note(self)
        if cuda_graphs != "never":
            report(self)

    @property
    def name(self) -> str:
        return ProgramReader(self.flat.table).name

    def read(self) -> ProgramTable:
        """What it runs, as records that people read."""
        return read_program(self.flat.table, self.flat.objects)

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        return self.run(*inputs)


def _allocate(shape: Shape, stride: Shape, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return or_spare(lambda: torch.empty_strided(shape, stride, dtype=dtype, device=device))


def _view(tensor: torch.Tensor, shape: Shape, stride: Shape, offset: int) -> torch.Tensor:
    return torch.as_strided(tensor, shape, stride, tensor.storage_offset() + offset)


def fit(tensor: torch.Tensor, shape: Shape, stride: Shape, dtype: torch.dtype, what: str) -> torch.Tensor:
    """A library call's result in the layout the kernels after it were built for; nearly always it has it already."""
    if shape == WORKSPACE and tensor.dtype is dtype:
        return tensor
    if tensor.shape != shape or tensor.dtype is not dtype:
        actual = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise UnexpectedResult("SM023", f"{what} returned {actual}, but its meta kernel says {dtype} of shape {shape}")
    if not tensor.is_neg() and not tensor._is_zerotensor():
        if tensor.stride() == stride:
            return tensor
        if all(size == 1 or have == want for size, have, want in zip(shape, tensor.stride(), stride, strict=True)):
            # The same memory; no view of it, which autograd would treat as one.
            whole = torch.empty(0, dtype=dtype, device=tensor.device)
            return whole.set_(tensor.untyped_storage(), tensor.storage_offset(), shape, stride)
    fitted = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return BASE.copy_(fitted, tensor)
