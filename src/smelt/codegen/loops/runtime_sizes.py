"""Sizes passed to machine code at each launch: each size expression it needs is an element of a precomputed array.

    rows(i:s0) cols(j:4*s1)     →   k0(buffers, …), where the last of `buffers` points at {s0, 4*s1, 4*s0*s1, …}

So one piece of machine code serves all sizes and computes none of them. A float is passed as its bits.
"""

import struct
from dataclasses import field

from smelt.base.fast_dataclass import dataclass
from smelt.symbolic.expressions import Expression
from smelt.symbolic.symsize import SymScalar, expression_of

RuntimeParam = Expression | SymScalar


@dataclass(slots=True)
class Sizes:
    """The runtime sizes of a kernel, in order. `place` is the position of their array among its buffers."""

    place: int
    params: dict[RuntimeParam, int] = field(default_factory=dict)

    def slot(self, number: float) -> int:
        what = number if type(number) is SymScalar else expression_of(number)  # type: ignore[arg-type]
        return self.params.setdefault(what, len(self.params))


def as_integer(number: float) -> int:
    """The array element of a number."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0] if isinstance(number, float) else number
    return bits
