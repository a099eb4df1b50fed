"""Stand-ins for what export does not know: a number of any value, and a range whose ends are such numbers.

A state that is explored is made of real objects. Where the program will have a number that a tensor decides, or that
differs from round to round of a loop, there is an `OpenNumber`; its tensor says in which register the number will be.

    n = int(x.sum())                 →   OpenNumber(int, tensor i64[])
    for i in range(n):               →   OpenRange(start=0, stop=OpenNumber(…), step=1)
"""

from typing import Any

import torch

DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


class OpenNumber:
    """A number of a known type and an unknown value, which a tensor without dimensions holds.

    `example` is what an integer is taken for where a size is made of it; of one that is known to be negative, its
    negative is (`negated`, another tensor), since symbols are positive.
    """

    __slots__ = ("example", "kind", "negated", "tensor")

    def __init__(self, kind: type, tensor: torch.Tensor, example: int = 3, negated: torch.Tensor | None = None) -> None:
        self.kind, self.tensor, self.example, self.negated = kind, tensor, example, negated


class OpenRange:
    """The iterator of a `range`, one of whose numbers is open.

    `test` is what a loop asks before it takes a number: an open bool once it is computed, and then the answer.
    """

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step
        self.test: Any = None


class Tested:
    """A value whose truth decides a jump that may keep it (`a or b`), and that truth as an open bool."""

    def __init__(self, value: Any, test: Any) -> None:
        self.value, self.test = value, test
