"""`MappedFile`: a file of weights in memory, read with bounds checks. Nothing in a file is trusted.

    file.unsigned(4)   →   the next 4 bytes as a number, or SM091 "model.gguf: the file ends within …"
"""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from smelt.base.errors import SmeltError


class MappedFile:
    """The bytes of a file, and the position of the next one to read. Pages are private: a tensor may be written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if self.size == 0:
                raise self.fault("the file is empty")
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.place = 0

    def fault(self, reason: str) -> SmeltError:
        return SmeltError("SM091", f"{self.path.name}: {reason}")

    def bytes(self, count: int, what: str) -> bytes:
        """The next bytes."""
        if count < 0 or count > self.size - self.place:
            raise self.fault(f"the file ends within {what}")
        self.place += count
        return self.memory[self.place - count : self.place]

    def unsigned(self, count: int, what: str) -> int:
        return int.from_bytes(self.bytes(count, what), "little")

    def tensor(self, start: int, shape: Sequence[int], dtype: torch.dtype, what: str) -> Tensor:
        """Elements from a byte of the file on; a copy where they are not aligned."""
        count = 1
        for size in shape:
            count *= size
        length = count * dtype.itemsize
        if not 0 <= start <= self.size or length > self.size - start:
            raise self.fault(f"{what} reaches beyond the end of the file")
        if count == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        if start % dtype.itemsize:
            raw = torch.frombuffer(self.memory, dtype=torch.uint8, count=length, offset=start)
            return raw.clone().view(dtype).view(tuple(shape))
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=start).view(tuple(shape))
