"""What random tensor programs can say besides `grammar`: bounds in 16 bits, and memory that overlaps.

    t0 = F.hardtanh(torch.where(a > 0, a, 0.10009765625), -0.1, 0.1)     a bound, and values that are the bound rounded
    b.view(-1).as_strided((2, 2), (1, 1)).add_(0.5)                      an element shown twice, and written
    a and b are slices of one array of numpy's                           a write to one is seen in the other

Only programs from `GROWN_FROM` on: the numbers below it are written down where such a program failed once, and have to
stand for what they stood for.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.targets import HOST

GROWN_FROM = 600_000_000

# No float of 16 bits: eager compares with these themselves, or with what they are rounded to.
BOUNDS = (0.1, 0.3, 1 / 3, 0.7, 1.1, 1.7, 2.3, 1e-3, 5.9)

# edge is a tensor some elements of which are the bound, rounded to its dtype; bound is the same wherever a line has it.
BOUNDED = [
    "F.hardtanh({edge}, -{bound}, {bound})",
    "F.hardtanh({edge}, {bound}, 9.1)",
    "F.threshold({edge}, {bound}, {number})",
    "F.threshold({edge}, {number}, {bound})",
    "{edge}.clamp(min={bound})",
    "{edge}.clamp(max={bound})",
    "{edge}.clamp(-{bound}, {bound})",
    "torch.clamp_min({edge}, {bound})",
    "torch.clamp_max({edge}, {bound})",
    "F.hardshrink({edge}, {bound})",
    "F.softshrink({edge}, {bound})",
    "F.relu6({edge} * 6)",
    "F.hardsigmoid({edge} * 3)",
    "F.hardswish({edge} * 3)",
    "F.elu({edge} - 1, {bound})",
    "F.celu({edge} - 1, {bound})",
    "F.selu({edge} - 1)",
    "F.leaky_relu({edge} - 1, {bound})",
    "F.rrelu({edge} - 1, {bound}, {bound})",
    "F.softplus({edge}, {bound}, {bound})",
    "F.logsigmoid({edge})",
    "torch.logit({edge}, {bound} / 10)",
    "torch.logit({edge}.sigmoid(), 1e-3)",
    "torch.nan_to_num({edge} / 0, nan={bound}, posinf={bound}, neginf=-{bound})",
    "F.huber_loss({edge}, torch.zeros_like({edge}), delta={bound}, reduction={reduction})",
    "F.smooth_l1_loss({edge}, torch.zeros_like({edge}), beta={bound}, reduction={reduction})",
    "F.hinge_embedding_loss({edge}, torch.ones_like({edge}), margin={bound}, reduction={reduction})",
    "F.margin_ranking_loss({edge}, -{edge}, torch.ones_like({edge}), margin={bound}, reduction={reduction})",
    "{edge} > {bound}",
    "{edge} >= {bound}",
    "{edge} == {bound}",
    "{edge} != {bound}",
    "{edge} < {bound}",
    "torch.where({edge} <= {bound}, {edge}, {bound})",
    "torch.isclose({edge}, torch.full_like({edge}, {bound}), atol={bound}, rtol=0)",
    "torch.remainder({edge}, {bound})",
    "torch.fmod({edge}, {bound})",
    "{edge} // {bound}",
    "{edge} - {bound}",
    "{edge} * {bound}",
    "{edge} / {bound}",
    "{edge}.abs() ** {bound}",
    "torch.add({edge}, {edge}, alpha={bound})",
    "torch.addcmul({edge}, {edge}, {edge}, value={bound})",
    "torch.addcdiv({edge}, {edge}, {edge}, value={bound})",
    "torch.lerp({edge}, {edge} * 2, {bound})",
    "{edge}.masked_fill({edge} > 0, {bound})",
    "torch.xlogy({edge}, {bound})",
    "torch.full_like({edge}, {bound})",
    "F.dropout({edge}, {bound} / 9, training=False)",
    "F.normalize({edge}, dim=-1, eps={bound})",
]

OVERLAPPING = [
    "{v}.view(-1).as_strided((2, 2), (1, 1)).add_({number})",
    "{v}.view(-1).as_strided((2, 2), (1, 1))[:, 1].mul_({number})",
    "{v}.view(-1).as_strided((3,), (2,)).sub_({number})",
    "{v}.view(-1).as_strided((2, 2), (2, 1)).copy_({v}.view(-1)[-4:].view(2, 2).clone())",
    "{v}.view(-1).as_strided((2,), (1,), 1).fill_({number})",
    "{v}.unfold({dim}, 2, 1).add_({number})",
    "{v}.unfold({dim}, 2, 2).mul_({number})",
    "{v}.view(-1)[::2].add_({v}.view(-1)[1::2])",
    "{v}.view(-1)[1::2].copy_({v}.view(-1)[::2])",
    "{v}[1:].add_({v}[:1])",
    "{v}[:1].copy_({v}[-1:])",
    "{v}.expand(2, *{v}.shape)[0].mul_({number})",
    "{v}.expand(2, *{v}.shape).select(0, 1).view(-1)[0] = {number}",
    "{x}.data.add_({number})",
    "{x}.detach().mul_({number})",
    "{x}.view_as({x}).sub_({number})",
    "torch.add({x}, {same}, out={twin})",
    "torch.mul({x}, {number}, out={x})",
    "torch.sub({x}, {number}, out={twin})",
    "torch._foreach_mul_([{x}, {twin}], {number})",
    "torch._foreach_add_([{x}], [{twin}])",
    "torch._foreach_copy_([{x}], [{twin}])",
    "{x}.copy_({twin})",
    "{x}.add_({twin})",
    "{x}.mul_({twin})",
]

# How tensors come to lie in one memory.
MEMORIES = ("numpy", "buffer", "exchanged", "storage")


class Vocabulary:
    """What one program takes its lines from: bounded or overlapping ones, both or none of them, among all others."""

    def __init__(self, chance: random.Random) -> None:
        kinds = [(False, False), (True, False), (False, True), (True, True)]
        self.bounded, self.overlaps = chance.choices(kinds, [1, 2, 3, 1])[0]
        self.writes = 0.3 if self.overlaps else 0.07

    def expression(self, chance: random.Random, templates: Sequence[str], weights: Sequence[int]) -> str:
        if self.bounded and chance.random() < 0.6:
            return chance.choice(BOUNDED)
        return chance.choices(templates, weights)[0]

    def statement(self, chance: random.Random, statements: Sequence[str]) -> str:
        return chance.choice(OVERLAPPING if self.overlaps and chance.random() < 0.6 else statements)


def in_one_memory(
    kind: str, places: Sequence[tuple[list[int], float]], values: torch.Tensor
) -> tuple[Any, list[torch.Tensor]]:
    """What holds the memory, and tensors of these shapes in it, each behind that part of the first one's size."""
    if values.device.type != HOST and kind in ("numpy", "buffer"):  # which have the host's memory alone
        kind = "storage"
    first = int(np.prod(places[0][0]))
    starts = [int(part * first) for _, part in places]
    sizes = [int(np.prod(shape)) for shape, _ in places]
    length = max(start + size for start, size in zip(starts, sizes, strict=True))
    if values.numel():
        values = values.reshape(-1)[torch.arange(length, device=values.device) % values.numel()]
    else:
        values = torch.zeros(length, dtype=values.dtype, device=values.device)
    by_numpy = kind == "numpy" and values.dtype is not torch.bfloat16
    if by_numpy or kind == "buffer" or kind == "numpy":
        held: Any = values.numpy().copy() if by_numpy else bytearray(values.view(torch.uint8).numpy().tobytes())
    else:
        held = values.clone()
    made = []
    for start, size, (shape, _) in zip(starts, sizes, places, strict=True):
        if size == 0:
            part = torch.empty(0, dtype=values.dtype, device=values.device)
        elif by_numpy:
            part = torch.from_numpy(held[start : start + size])
        elif isinstance(held, bytearray):
            part = torch.frombuffer(held, dtype=values.dtype, count=size, offset=start * values.itemsize)
        elif kind == "exchanged":
            part = torch.from_dlpack(held[start : start + size])
        else:
            part = values.new_empty(0).set_(held.untyped_storage(), start, (size,), (1,))
        made.append(part.view(shape))
    return held, made
