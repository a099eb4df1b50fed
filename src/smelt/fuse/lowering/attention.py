"""Attention as kernels that weigh scores which are never in memory.

    attention(q, k, v) of 12 heads of 64, causal
    →  rows(b, g, r, i) cols(j): s = contract q, k · scaled, -inf where j > i · p = softmax · y = weighted sum p * v

Queries' heads are counted as heads of keys (`g`) and those that share each (`r`). Everything is read where it is:
transposed heads, keys of several heads, masks with one row for all queries; copies that were only made to lay something
out, or to widen it, are read through.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.device.product_costs import AttentionSizes
from smelt.fuse.lowering.factors import through_copy
from smelt.fuse.lowering.values import FusionValue, Ref
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Contract,
    Factor,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Role,
    Softmax,
    Stage,
    Store,
    WeightedSum,
)
from smelt.ir.tensorspec import TensorSpec, short_name, tensor_spec
from smelt.ops.promote import widened
from smelt.ops.record import OperandLayout
from smelt.ops.views import expand
from smelt.symbolic.shapes import Size, span

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default

RefOf = Callable[[fx.Node], Ref]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A kernel for a call, the values it reads, in the order of its inputs, and which results follow those."""

    kernel: Kernel
    sources: tuple[FusionValue, ...]
    results: tuple[int, ...]
    sizes: AttentionSizes


def is_attention_call(node: fx.Node) -> bool:
    return node.target is FORWARD


def read_attention(node: fx.Node, ref_of: RefOf, results: Sequence[tuple[int, TensorSpec]]) -> AttentionCall | str:
    """The kernel of a call for those of its `results` that are read, or why there is none, after "it"."""
    names = ("query", "key", "value", "dropout_p", "is_causal")
    asked: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    nodes = [asked[name] for name in ("query", "key", "value")]
    mask = asked.get("attn_mask")
    if asked.get("dropout_p"):
        return "drops weights at random, which kernels do not"
    tensors = nodes if mask is None else [*nodes, mask]
    specs = [tensor_spec(each) for each in tensors]
    if any(spec.varies for spec in specs):
        return "has sizes that vary"
    reason = _why_not(specs)
    if reason is not None:
        return reason
    return _Writer(asked, [through_copy(ref_of(each)) for each in tensors], specs, dict(results)).call()


def _why_not(specs: Sequence[TensorSpec]) -> str | None:
    query, key, value = specs[:3]
    if any(len(spec.shape) != 4 for spec in (query, key, value)) or key.shape[:3] != value.shape[:3]:
        return "has tensors that are not batch, heads, tokens and width"
    if not query.dtype.is_floating_point or len({spec.dtype for spec in specs[:3]}) != 1:
        return f"computes on {short_name(query.dtype)}"
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3] or not key.shape[1]:
        return "has queries and keys that do not fit"
    if query.shape[1] % key.shape[1] or 0 in query.shape or 0 in key.shape or 0 in value.shape:
        return "has no elements, or heads that are not shared evenly"
    return None


class _Writer:
    def __init__(
        self, asked: dict[str, Any], refs: Sequence[Ref], specs: Sequence[TensorSpec], results: dict[int, TensorSpec]
    ) -> None:
        self.refs, self.results = refs, results
        self.query, self.key, self.value = (spec.shape for spec in specs[:3])
        self.dtype = widened(specs[0].dtype)
        self.causal = bool(asked.get("is_causal"))
        scale = asked.get("scale")
        self.scale = 1 / math.sqrt(self.query[3]) if scale is None else float(scale)
        self.shared = self.query[1] // self.key[1]
        self.names: dict[FusionValue, str] = {}
        for name, ref in zip("qkvm", refs, strict=False):
            self.names.setdefault(ref.value, name)

    def call(self) -> AttentionCall:
        body, softmax = self._scores()
        weighs, last, outputs = self._results(softmax)
        buffers = [
            Buffer(name, value.spec.dtype, span(value.spec.shape, value.spec.stride), Role.INPUT)
            for value, name in self.names.items()
        ]
        stages = [Stage(True, (*body, *weighs))]
        if last:
            stages.append(Stage(False, tuple(last)))
        rows = (Axis("b", self.query[0]), Axis("g", self.key[1]), Axis("r", self.shared), Axis("i", self.query[2]))
        kernel = Kernel("attention", rows, (Axis("j", self.key[2]),), (*buffers, *outputs), tuple(stages))
        count = int(self.query[0] * self.query[1])
        sizes = AttentionSizes(count, int(self.query[2]), int(self.key[2]), int(self.query[3]), self.causal)
        return AttentionCall(kernel, tuple(self.names), tuple(sorted(self.results)), sizes)

    def _index(self, layout: OperandLayout, token: str, along: str) -> Index:
        """Over rows, cols and an axis of one's own: where the element of a tensor is."""
        heads = self.shared if layout.shape[1] == self.query[1] else 1
        batch, head, step, one = layout.stride
        return _index(
            layout.offset,
            b=batch,
            g=head * heads,
            r=head if heads > 1 or self.shared == 1 else 0,
            i=step if token == "i" else 0,
            j=step if token == "j" else 0,
            **{along: one},
        )

    def _factor(self, number: int, token: str, along: str) -> Factor:
        ref = self.refs[number]
        return Factor(self.names[ref.value], self._index(ref.layout, token, along))

    def _scores(self) -> tuple[list[Instruction], str]:
        """Scores and what is done to them; and the value whose softmax is taken."""
        dtype = self.dtype
        body: list[Instruction] = [
            Contract("s", (Axis("e", self.query[3]),), self._factor(0, "i", "e"), self._factor(1, "j", "e"), dtype),
            Const("scale", self.scale, dtype),
            Compute("scaled", "mul", ("s", "scale"), dtype),
        ]
        found = "scaled"
        if self.causal:
            body += [
                Const("never", -math.inf, dtype),
                Position("at_j", Index((("j", 1),))),
                Position("at_i", Index((("i", 1),))),
                Compute("later", "gt", ("at_j", "at_i"), torch.bool),
                Compute("causal", "where", ("later", "never", found), dtype),
            ]
            found = "causal"
        if len(self.refs) > 3:
            body += self._masked(found)
            found = "masked"
        return body, found

    def _masked(self, found: str) -> list[Instruction]:
        ref, dtype = self.refs[3], self.dtype
        layout = expand(ref.layout, (*self.query[:3], self.key[2]))
        batch, head, query, key = layout.stride
        heads = {"g": head * self.shared, "r": head if self.shared > 1 else 0}
        place = _index(layout.offset, b=batch, **heads, i=query, j=key)
        body: list[Instruction] = [Load("mask", self.names[ref.value], place)]
        mask = "mask"
        if ref.value.spec.dtype is not dtype:
            body.append(Cast("wide_mask", mask, dtype))
            mask = "wide_mask"
        return [*body, Compute("masked", "add", (found, mask), dtype)]

    def _results(self, found: str) -> tuple[list[Instruction], list[Instruction], list[Buffer]]:
        """The weighted sum, what is stored of each query's weights, and the buffers of both."""
        sums = "sums" if 1 in self.results else ""
        body: list[Instruction] = [Softmax("p", found, sums)]
        last: list[Instruction] = []
        outputs: list[Buffer] = []
        for number, spec in sorted(self.results.items()):
            layout = OperandLayout(spec.shape, spec.stride)
            name = "yl"[number]
            outputs.append(Buffer(name, spec.dtype, span(spec.shape, spec.stride), Role.OUTPUT))
            if number:
                batch, head, step = layout.stride
                last.append(Store(name, _index(0, b=batch, g=head * self.shared, r=head, i=step), sums))
            else:
                factor = self._factor(2, "j", "d")
                width = (Axis("d", self.value[3]),)
                body.append(WeightedSum(name, self._index(layout, "i", "d"), width, "p", factor, self.dtype))
        return body, last, outputs


def _index(offset: Size, **steps: Size) -> Index:
    return Index(tuple((name, step) for name, step in steps.items() if step), offset)

