"""Attention and its gradients as kernels that never store the scores.

    attention(q, k, v) of 12 heads of 64, causal
    →  rows(b, g, r, i) cols(j): s = contract q, k · scaled, -inf where j > i · p = softmax · y = weighted sum p * v

    its gradients: p = exp(s - l), ds = p · (contract g, v - contract g, y) · dv = p * g, dk = ds * q, dq = ds * k

The heads of queries are numbered by the head of keys (`g`) and by the query heads that share it (`r`). Operands are
read in place: transposed heads, keys of several heads, masks with one row for all queries. Copies that only change the
layout, or widen the dtype, are read through.
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
from smelt.symbolic.shapes import Shape, Size, span
from smelt.symbolic.symsize import hint, same_sizes

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
GPU_FORWARD = (
    aten._scaled_dot_product_flash_attention.default,
    EFFICIENT,
    aten._scaled_dot_product_cudnn_attention.default,
)
# The arguments of each, as kernels call them.
_ARGUMENTS: dict[object, tuple[str, ...]] = {
    FORWARD: ("q", "k", "v", "dropout_p", "is_causal"),
    BACKWARD: ("g", "q", "k", "v", "y", "l", "dropout_p", "is_causal"),
    GPU_FORWARD[0]: ("q", "k", "v", "dropout_p", "is_causal"),
    GPU_FORWARD[1]: ("q", "k", "v", "m", "with_sums", "dropout_p", "is_causal"),
    GPU_FORWARD[2]: ("q", "k", "v", "m", "with_sums", "dropout_p", "is_causal"),
}
_NAMES = {
    "query": "q", "key": "k", "value": "v", "attn_mask": "m", "attn_bias": "m", "grad_out": "g", "out": "y",
    "logsumexp": "l",
}  # fmt: skip

RefOf = Callable[[fx.Node], Ref]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A kernel for a call, the values it reads, in the order of its inputs, and its sizes."""

    kernel: Kernel
    sources: tuple[FusionValue, ...]
    sizes: AttentionSizes


def is_attention_call(node: fx.Node) -> bool:
    return node.target in _ARGUMENTS


def read_attention(node: fx.Node, ref_of: RefOf, results: Sequence[tuple[int, TensorSpec]]) -> AttentionCall | str:
    """The kernel of a call for those of its `results` that are used, or the reason why there is none, after "it"."""
    asked: dict[str, Any] = dict(zip(_ARGUMENTS[node.target], node.args, strict=False))
    asked |= {_NAMES.get(name, name): value for name, value in node.kwargs.items()}
    tensors = {name: asked[name] for name in "qkvgylm" if isinstance(asked.get(name), fx.Node)}
    if asked.get("dropout_p"):
        return "drops weights at random, which kernels do not"
    specs = {name: tensor_spec(each) for name, each in tensors.items()}
    if any(spec.varies for spec in specs.values()) and node.target not in GPU_FORWARD:
        return "has sizes that vary"
    reason = _why_not(specs)
    if reason is not None:
        return reason
    refs = {name: through_copy(ref_of(each)) for name, each in tensors.items()}
    scale, causal = asked.get("scale"), bool(asked.get("is_causal"))
    if node.target in GPU_FORWARD:
        if causal and specs["q"].shape[2] != specs["k"].shape[2]:
            return "is causal with fewer queries than keys"
        _share_heads(tensors, refs, specs, ref_of)
    shapes = {name: (refs[name].layout.shape if name in "kv" else spec.shape) for name, spec in specs.items()}
    width = specs["q"].shape[3]
    scores = _Scores(refs, specs, shapes, 1 / math.sqrt(width) if scale is None else float(scale), causal)
    stages_and_outputs = scores.backward(dict(results)) if node.target is BACKWARD else scores.forward(dict(results))
    return scores.call(*stages_and_outputs, gradients=node.target is BACKWARD)


def _why_not(specs: dict[str, TensorSpec]) -> str | None:
    query, key, value = (specs[name] for name in "qkv")
    if any(len(spec.shape) != 4 for spec in (query, key, value)) or key.shape[:3] != value.shape[:3]:
        return "has tensors that are not batch, heads, tokens and width"
    if not query.dtype.is_floating_point or len({specs[name].dtype for name in "qkvgy" if name in specs}) != 1:
        return f"computes on {short_name(query.dtype)}"
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        return "has queries and keys that do not fit"
    # Of no keys at all a query finds zeros; but there are no gradients to them.
    sizes = (*query.shape, *key.shape[:2], value.shape[3], *(key.shape[2:3] if "g" in specs else ()))
    if 0 in sizes or query.shape[1] % key.shape[1]:
        return "has no elements, or heads that are not shared evenly"
    return None


def _share_heads(
    tensors: dict[str, fx.Node], refs: dict[str, Ref], specs: dict[str, TensorSpec], ref_of: RefOf
) -> None:
    """Have heads of keys that are copies of each other read once, in place: k and v are each

    view(clone(expand(unsqueeze(keys, 2), [2, 8, 4, 512, 64])), [2, 32, 512, 64])
    """
    shared: dict[str, Ref] = {}
    for name in "kv":
        source = _repeated(tensors[name], specs[name])
        if source is None:
            return
        ref = ref_of(source)
        shape, stride = (tuple(each[dim] for dim in (0, 1, 3, 4)) for each in (ref.layout.shape, ref.layout.stride))
        shared[name] = Ref(ref.value, OperandLayout(shape, stride, ref.layout.offset))
    refs.update(shared)


def _repeated(value: fx.Node, spec: TensorSpec) -> fx.Node | None:
    """Heads by how often each is repeated, if a value is a copy of such, laid out head by head."""
    nodes = [value]
    for target in (aten.view.default, aten.clone.default):
        source = nodes[-1].args[0] if nodes[-1].target is target else None
        if not isinstance(source, fx.Node):
            return None
        nodes.append(source)
    expanded = tensor_spec(nodes[-1])
    if len(expanded.shape) != 5 or expanded.stride[2] != 0:
        return None
    batch, heads, times, length, width = expanded.shape
    return nodes[-1] if same_sizes(spec.shape, (batch, heads * times, length, width)) else None


class _Scores:
    """The scores of an attention, and the kernels that use them."""

    def __init__(
        self,
        refs: dict[str, Ref],
        specs: dict[str, TensorSpec],
        shapes: dict[str, Shape],
        scale: float,
        causal: bool,
    ) -> None:
        self.refs, self.scale, self.causal = refs, scale, causal
        self.query, self.key, self.value = (shapes[name] for name in "qkv")
        self.dtype = widened(specs["q"].dtype)
        self.shared = self.query[1] // self.key[1]
        self.names: dict[FusionValue, str] = {}
        for name, ref in refs.items():
            self.names.setdefault(ref.value, name)
        self.along = {name: (Axis(name, size),) for name, size in (("e", self.query[3]), ("d", self.value[3]))}

    def call(self, stages: tuple[Stage, ...], outputs: Sequence[Buffer], *, gradients: bool) -> AttentionCall:
        inputs = [
            Buffer(name, value.spec.dtype, span(value.spec.shape, value.spec.stride), Role.INPUT)
            for value, name in self.names.items()
        ]
        rows = (Axis("b", self.query[0]), Axis("g", self.key[1]), Axis("r", self.shared), Axis("i", self.query[2]))
        name = "attention_gradients" if gradients else "attention"
        kernel = Kernel(name, rows, (Axis("j", self.key[2]),), (*inputs, *outputs), stages)
        count, width = hint(self.query[0] * self.query[1]), hint(self.query[3])
        sizes = AttentionSizes(count, hint(self.query[2]), hint(self.key[2]), width, self.causal, gradients)
        return AttentionCall(kernel, tuple(self.names), sizes)

    def forward(self, results: dict[int, TensorSpec]) -> tuple[tuple[Stage, ...], list[Buffer]]:
        """The weighted sum, and what is stored of each query's weights."""
        body, score = self._body()
        sums = "sums" if 1 in results else ""
        body.append(Softmax("p", score, sums))
        stages: tuple[Stage, ...] = ()
        if 0 in results:
            body.append(self._weigh("y", results[0], "p", ("v", "j", "d")))
        if 1 in results:
            stages = (Stage(False, (Store("l", self._row_index(results[1].stride), sums),)),)
        outputs = [_output("yl"[number], spec) for number, spec in sorted(results.items())]
        return (Stage(True, tuple(body)), *stages), outputs

    def backward(self, results: dict[int, TensorSpec]) -> tuple[tuple[Stage, ...], list[Buffer]]:
        """The recomputed scores, their gradients, and sums over queries and over keys."""
        body, score = self._body()
        dtype, grad = self.dtype, self._factor("g", "i", "d")
        sums = self.refs["l"]
        body += [
            Load("l_i", self.names[sums.value], self._row_index(sums.layout.stride, sums.layout.offset)),
            Compute("below", "sub", (score, "l_i"), dtype),
            Compute("p", "exp", ("below",), dtype),
            Contract("of_p", self.along["d"], grad, self._factor("v", "j", "d"), dtype),
            Contract("kept", self.along["d"], grad, self._factor("y", "i", "d"), dtype),
            Compute("apart", "sub", ("of_p", "kept"), dtype),
            Compute("of_s", "mul", ("p", "apart"), dtype),
            Compute("ds", "mul", ("of_s", "scale"), dtype),
        ]
        weighed = (("dq", "ds", ("k", "j", "e")), ("dk", "ds", ("q", "i", "e")), ("dv", "p", ("g", "i", "d")))
        outputs = []
        for number, spec in sorted(results.items()):
            name, weight, factor = weighed[number]
            body.append(self._weigh(name, spec, weight, factor))
            outputs.append(_output(name, spec))
        return (Stage(True, tuple(body)),), outputs

    # What they are made of.

    def _index(self, layout: OperandLayout, token: str, along: str) -> Index:
        """The position of a tensor's element over rows, cols and its own axis. For a single key any step will do."""
        heads = self.shared if layout.shape[1] == self.query[1] else 1
        batch, head, step, one = layout.stride
        return _index(
            layout.offset,
            b=batch,
            g=head * heads,
            r=head if heads > 1 else 0,
            i=step if token == "i" else 0,
            j=(step if self.key[2] != 1 else 1) if token == "j" else 0,
            **{along: one},
        )

    def _row_index(self, stride: Shape, offset: Size = 0) -> Index:
        batch, head, step = stride
        return _index(offset, b=batch, g=head * self.shared, r=head if self.shared > 1 else 0, i=step)

    def _factor(self, name: str, token: str, along: str) -> Factor:
        ref = self.refs[name]
        return Factor(self.names[ref.value], self._index(ref.layout, token, along))

    def _weigh(self, name: str, spec: TensorSpec, weight: str, factor: tuple[str, str, str]) -> WeightedSum:
        """A result that is summed over the axis of the factor."""
        _, token, along = factor
        place = self._index(OperandLayout(spec.shape, spec.stride), "j" if token == "i" else "i", along)
        return WeightedSum(name, place, self.along[along], weight, self._factor(*factor), self.dtype)

    def _body(self) -> tuple[list[Instruction], str]:
        """The scores and the operations on them; and the value whose exponentials are the weights."""
        dtype = self.dtype
        body: list[Instruction] = [
            Contract("s", self.along["e"], self._factor("q", "i", "e"), self._factor("k", "j", "e"), dtype),
            Const("scale", self.scale, dtype),
            Compute("scaled", "mul", ("s", "scale"), dtype),
        ]
        score = "scaled"
        if self.causal:
            body += [
                Const("never", -math.inf, dtype),
                Position("at_j", Index((("j", 1),))),
                Position("at_i", Index((("i", 1),))),
                Compute("later", "gt", ("at_j", "at_i"), torch.bool),
                Compute("causal", "where", ("later", "never", score), dtype),
            ]
            score = "causal"
        if "m" in self.refs:
            body += self._masked(score)
            score = "masked"
        return body, score

    def _masked(self, score: str) -> list[Instruction]:
        ref, dtype = self.refs["m"], self.dtype
        layout = expand(ref.layout, (*self.query[:3], self.key[2]))
        batch, head, query, key = layout.stride
        heads = {"g": head * self.shared, "r": head if self.shared > 1 else 0}
        place = _index(layout.offset, b=batch, **heads, i=query, j=key)
        body: list[Instruction] = [Load("mask", self.names[ref.value], place)]
        mask = "mask"
        if ref.value.spec.dtype is not dtype:
            body.append(Cast("wide_mask", mask, dtype))
            mask = "wide_mask"
        return [*body, Compute("masked", "add", (score, mask), dtype)]


def _output(name: str, spec: TensorSpec) -> Buffer:
    return Buffer(name, spec.dtype, span(spec.shape, spec.stride), Role.OUTPUT)


def _index(offset: Size, **steps: Size) -> Index:
    return Index(tuple((name, step) for name, step in steps.items() if step), offset)
