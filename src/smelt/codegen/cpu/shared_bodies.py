"""Kernels that differ only in length share one body, such as an optimizer's updates of all parameters.

    k0: cols(j:256) …, k1: cols(j:65536) …     →   f0 is given a length; k0 calls it with 256, k1 with 65536

The length of a kernel is its number of rows, or of cols if it has no rows. The size of every buffer is proportional to
the length or does not depend on it.
"""

from collections.abc import Sequence
from dataclasses import replace

from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.row import BudgetUse, Row, run_rows
from smelt.codegen.generator import EntryCode, Family
from smelt.codegen.loops.runtime_sizes import as_integer
from smelt.codegen.shared_functions import forwarding
from smelt.ir.kernel import Axis, Kernel
from smelt.ir.substitute_sizes import length_axis, lengthened, resized
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import SMALLEST, ShapeEnv, Symbol
from smelt.symbolic.symsize import sym_size

_LEAST_COLS = 64  # whole vectors of every target fit: no body is written for less


def _share_bodies(kernels: Sequence[Kernel], budget: RewriteBudget) -> list[Family]:
    return [each for each in families(kernels) if budget.take(*(kernels[place].name for place in each.lengths))]


MODULE = (
    Row(
        "share bodies", "kernels", "families", _share_bodies,
        "before schedules: a family is scheduled once, for all its lengths", BudgetUse.EACH,
    ),
)  # fmt: skip


def shared(kernels: Sequence[Kernel], budget: RewriteBudget, of: str = "") -> list[Family]:
    """Kernels that are to have one body. `of`: what `bisect` calls their program."""
    members: list[Family] = run_rows(kernels, MODULE, budget, budget, f"{of}generate")
    return members


def families(kernels: Sequence[Kernel]) -> list[Family]:
    """Those of `kernels` that have relatives among them."""
    by_text: dict[str, dict[int, int]] = {}
    for place, kernel in enumerate(kernels):
        axis = _along(kernel)
        if axis is not None:
            text = format_kernel(replace(lengthened(kernel, axis, 0), name="kernel"))
            by_text.setdefault(text, {})[place] = axis.size
    return [_family(kernels, lengths) for lengths in by_text.values() if len(lengths) > 1]


def _family(kernels: Sequence[Kernel], lengths: dict[int, int]) -> Family:
    place, length = min(lengths.items(), key=lambda item: item[1])
    axis = _along(kernels[place])
    assert axis is not None
    more = _least(kernels[place]) - SMALLEST
    shape_env = ShapeEnv()
    varies = sym_size(shape_env, shape_env.symbol("length", length - more)) + more
    return Family(lengthened(kernels[place], axis, varies), more, lengths)


def _least(kernel: Kernel) -> int:
    return SMALLEST if kernel.rows else _LEAST_COLS


def _along(kernel: Kernel) -> Axis | None:
    """The axis whose size is the kernel's length, if it is long enough."""
    axis = length_axis(kernel)
    return None if axis is None or axis.size < _least(kernel) else axis


def member(symbol: str, body: str, code: EntryCode, value: int, buffers: int) -> EntryCode | None:
    """The entry of a kernel that calls `body`; None if the body's assumptions do not hold for its length."""

    def values(_: Symbol) -> int:
        return value

    if not all(fact.holds(values) for fact in code.facts):
        return None
    workspace = resized(code.per_thread_workspace, lambda size: size.evaluate(values))
    numbers = [as_integer(size.evaluate(values)) for size in code.sizes]
    return EntryCode((forwarding(symbol, body, numbers, buffers),), (), workspace)
