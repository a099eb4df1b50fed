"""Windows of a convolution: how the outputs of an axis, and a sum over it, move through one axis of an input.

    x[784*c + 28*oh + ow + 28*kh + kw - 29] where oh + kh - 1 below 28 and ow + kw - 1 below 28
    → Window(oh, kh): input row oh + kh - 1 of 28, 28 elements apart; Window(ow, kw): input column ow + kw - 1 of 28

All inputs that a window reaches are copied once, with zeros outside the image, so nothing is out of bounds.
"""

from math import gcd

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import Axis, Factor, Index
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize


@dataclass(frozen=True, slots=True)
class Window:
    """Input position `step · output + dilation · k + offset`, which is one of `extent` or zero is meant; `apart` is
    how far two neighbours of it are in memory."""

    output: str
    outputs: int
    k: str
    taps: int
    step: int
    dilation: int
    offset: int
    extent: int | None
    apart: int

    @property
    def first(self) -> int:
        """The first position that is reached."""
        return self.offset + min(0, self.dilation * (self.taps - 1))

    def reach(self, outputs: int) -> int:
        """How many positions so many outputs side by side depend on."""
        return self.step * (outputs - 1) + abs(self.dilation) * (self.taps - 1) + 1

    def place(self, k: int) -> int:
        """Where tap `k` of an output is, from the first position that the output reaches."""
        return self.dilation * k - min(0, self.dilation * (self.taps - 1))


def window_of(factor: Factor, k: Axis | None, outputs: Axis | None) -> Window | None:
    """How `outputs` and `k` move through a factor together, if its bounds say or leave it."""
    out_name, k_name = outputs.name if outputs else "", k.name if k else ""
    along = (outputs.size if outputs else 1, k.size if k else 1)
    strides = factor.index.stride(out_name), factor.index.stride(k_name)
    if any(map(is_symsize, (*along, *strides))):
        return None
    named = {name for name in (out_name, k_name) if name}
    bounds = [(at, extent) for at, extent in factor.bounds if at.axes & named]
    if len(bounds) > 1 or any(stride < 0 for stride in strides[:1]):
        return None
    if not bounds:
        unit = gcd(*strides) or 1
        return Window(out_name, along[0], k_name, along[1], strides[0] // unit, strides[1] // unit, 0, None, unit)
    ((at, extent),) = bounds
    if is_symsize(extent):
        return None
    steps = at.stride(out_name), at.stride(k_name)
    apart = _apart(strides, steps)
    if not at.axes <= named or apart is None or steps[0] < 0:
        return None
    return Window(out_name, along[0], k_name, along[1], *steps, int(at.offset), int(extent), apart)


def _apart(strides: tuple[int, int], steps: tuple[int, int]) -> int | None:
    """What memory moves by where a position moves by one; None if it is not one number."""
    ratios = {stride // step for stride, step in zip(strides, steps, strict=True) if step}
    exact = all(stride == step * next(iter(ratios), 0) for stride, step in zip(strides, steps, strict=True))
    return ratios.pop() if len(ratios) == 1 and exact else None


def start(index: Index, windows: tuple[Window, ...]) -> Size:
    """The offset of an index without what its windows count from."""
    return index.offset - sum(window.offset * window.apart for window in windows)
