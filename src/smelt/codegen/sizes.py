"""Sizes that machine code is told at each launch: each expression it needs is a number of an array, computed before.

    rows(i:s0) cols(j:4*s1)     →   k0(buffers, …), where the last of `buffers` points at {s0, 4*s1, 4*s0*s1, …}

So one piece of machine code serves all sizes, and no size is computed inside it.
"""

from dataclasses import dataclass, field

from smelt.base.symbols import Expression
from smelt.base.varying import expression_of


@dataclass(slots=True)
class Sizes:
    """The expressions a kernel is told, in order. `place` is where among its buffers their array comes."""

    place: int
    expressions: dict[Expression, int] = field(default_factory=dict)

    def slot(self, size: int) -> int:
        return self.expressions.setdefault(expression_of(size), len(self.expressions))
