"""Attention as kernels of any layout, and what eager finds for the same tensors."""

import math
from dataclasses import field, replace

import torch
from torch import Tensor

from smelt.base.fast_dataclass import dataclass
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
from tests.kernel_reference import run_kernel

F32, F64 = torch.float32, torch.float64


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of an attention. Tensors are `[batch, heads, tokens, width]`, tokens before heads in memory where `apart`.

    `shared` heads of queries have one of keys. A mask is added, `[queries, keys]`, or one row for all queries."""

    batch: int = 1
    heads: int = 1
    shared: int = 1
    queries: int = 1
    keys: int = 1
    width: int = 1
    values: int = 1
    dtype: torch.dtype = F32
    causal: bool = False
    mask: str = ""  # "full", "keys" or "heads"
    mask_dtype: torch.dtype = F32
    apart: bool = True
    scale: float = 0.125
    sums: bool = True
    extra: dict[str, int] = field(default_factory=dict)

    @property
    def wide(self) -> torch.dtype:
        return F64 if self.dtype is F64 else F32

    def shapes(self) -> dict[str, tuple[int, int, int, int]]:
        heads = self.heads * self.shared
        return {
            "q": (self.batch, heads, self.queries, self.width),
            "k": (self.batch, self.heads, self.keys, self.width),
            "v": (self.batch, self.heads, self.keys, self.values),
            "y": (self.batch, heads, self.queries, self.values),
        }

    def strides(self, name: str) -> tuple[int, int, int, int]:
        _, heads, tokens, width = self.shapes()[name]
        if self.apart:
            return (tokens * heads * width, width, heads * width, 1)
        return (heads * tokens * width, tokens * width, width, 1)

    def place(self, name: str, token: str, along: str) -> Index:
        """Where a tensor's element is, over the axes b, g, r, i, j and its own."""
        batch, head, step, _ = self.strides(name)
        terms = {"b": batch, "g": head * (self.shared if name in "qy" else 1), "r": head if name in "qy" else 0}
        terms |= {"i": step if token == "i" else 0, "j": step if token == "j" else 0, along: 1}
        return Index(tuple((axis, stride) for axis, stride in terms.items() if stride), self.extra.get(name, 0))

    def kernel(self) -> Kernel:
        wide = self.wide
        rows = (Axis("b", self.batch), Axis("g", self.heads), Axis("r", self.shared), Axis("i", self.queries))
        query, key = Factor("q", self.place("q", "i", "e")), Factor("k", self.place("k", "j", "e"))
        body: list[Instruction] = [
            Contract("s", (Axis("e", self.width),), query, key, wide),
            Const("c", self.scale, wide),
            Compute("t", "mul", ("s", "c"), wide),
        ]
        value = "t"
        if self.causal:
            body += [
                Const("n", -math.inf, wide), Position("pj", Index((("j", 1),))), Position("pi", Index((("i", 1),))),
                Compute("later", "gt", ("pj", "pi"), torch.bool), Compute("u", "where", ("later", "n", "t"), wide),
            ]  # fmt: skip
            value = "u"
        if self.mask:
            body += self._masked(value)
            value = "z"
        body += [
            Softmax("p", value, "l" if self.sums else ""),
            WeightedSum("y", self.place("y", "i", "d"), (Axis("d", self.values),), "p",
                        Factor("v", self.place("v", "j", "d")), wide),
        ]  # fmt: skip
        stages = [Stage(True, tuple(body))]
        shapes = self.shapes()
        buffers = [
            Buffer(name, self.dtype, math.prod(shapes[name]) + self.extra.get(name, 0), Role.INPUT) for name in "qkv"
        ]
        if self.mask:
            buffers.append(Buffer("m", self.mask_dtype, math.prod(self.mask_shape()), Role.INPUT))
        buffers.append(Buffer("y", self.dtype, math.prod(shapes["y"]), Role.OUTPUT))
        if self.sums:
            heads, each = self.heads * self.shared, self.queries
            place = Index((("b", heads * each), ("g", self.shared * each), ("r", each), ("i", 1)))
            stages.append(Stage(False, (Store("lse", place, "l"),)))
            buffers.append(Buffer("lse", wide, self.batch * heads * self.queries, Role.OUTPUT))
        return Kernel("attention", rows, (Axis("j", self.keys),), tuple(buffers), tuple(stages))

    def gradients(self) -> Kernel:
        """The kernel of the gradients to queries, keys and values, of which heads share none."""
        wide, forward = self.wide, self.kernel()
        body = [i for i in forward.stages[0].body if not isinstance(i, Softmax | WeightedSum)]
        value = next(i.value for i in forward.stages[0].body if isinstance(i, Softmax))
        place = Index((("b", self.heads * self.queries), ("g", self.queries), ("i", 1)))
        of_queries, of_keys = Factor("g", self.place("y", "i", "d")), Factor("v", self.place("v", "j", "d"))
        d, e = (Axis("d", self.values),), (Axis("e", self.width),)
        body += [
            Load("l", "lse", place), Compute("x", "sub", (value, "l"), wide), Compute("p", "exp", ("x",), wide),
            Contract("dp", d, of_queries, of_keys, wide),
            Contract("kept", d, of_queries, Factor("y", self.place("y", "i", "d")), wide),
            Compute("apart", "sub", ("dp", "kept"), wide), Compute("of_p", "mul", ("p", "apart"), wide),
            Compute("ds", "mul", ("of_p", "c"), wide),
            WeightedSum("dv", self.place("v", "j", "d"), d, "p", of_queries, wide),
            WeightedSum("dk", self.place("k", "j", "e"), e, "ds", Factor("q", self.place("q", "i", "e")), wide),
            WeightedSum("dq", self.place("q", "i", "e"), e, "ds", Factor("k", self.place("k", "j", "e")), wide),
        ]  # fmt: skip
        sizes = {buffer.name: buffer for buffer in forward.buffers}
        inputs = [buffer for buffer in forward.buffers if buffer.role is Role.INPUT]
        inputs += [replace(sizes["y"], name=name, role=Role.INPUT) for name in "gy"]
        inputs.append(Buffer("lse", wide, self.batch * self.heads * self.queries, Role.INPUT))
        outputs = [replace(sizes[name], name=f"d{name}", role=Role.OUTPUT) for name in "qkv"]
        return Kernel("gradients", forward.rows, forward.cols, (*inputs, *outputs), (Stage(True, tuple(body)),))

    def mask_shape(self) -> tuple[int, int, int, int]:
        heads = self.heads * self.shared
        return {"full": (1, 1, self.queries, self.keys), "keys": (self.batch, 1, 1, self.keys),
                "heads": (self.batch, heads, self.queries, self.keys), "": (1, 1, 1, 1)}[self.mask]  # fmt: skip

    def _masked(self, value: str) -> list[Instruction]:
        batch, heads, queries, keys = self.mask_shape()
        terms = {"b": heads * queries * keys * (batch > 1), "g": self.shared * queries * keys * (heads > 1),
                 "r": queries * keys * (heads > 1), "i": keys * (queries > 1), "j": 1}  # fmt: skip
        place, wide = Index(tuple((axis, step) for axis, step in terms.items() if step)), self.wide
        found: list[Instruction] = [Load("mask", "m", place)]
        if self.mask_dtype is torch.bool:
            return [*found, Const("never", -math.inf, wide), Compute("z", "where", ("mask", value, "never"), wide)]
        if self.mask_dtype is not wide:
            return [*found, Cast("more", "mask", wide), Compute("z", "add", (value, "more"), wide)]
        return [*found, Compute("z", "add", (value, "mask"), wide)]

    def view(self, name: str, flat: Tensor) -> Tensor:
        return flat.as_strided(self.shapes()[name], self.strides(name), self.extra.get(name, 0))

    def made(self, seed: int, spread: float = 1.0, kernel: Kernel | None = None) -> list[Tensor]:
        """A tensor for each buffer."""
        chance = torch.Generator().manual_seed(seed)
        found = []
        for buffer in (kernel or self.kernel()).parameters:
            values = torch.randn(int(buffer.size), generator=chance, dtype=F64)
            if buffer.name == "m" and buffer.dtype is torch.bool:
                found.append(values > -0.5)
            elif buffer.name == "m":
                found.append(torch.where(values > 1, -math.inf, values).to(buffer.dtype))
            else:
                found.append((values * (spread if buffer.name in "qk" else 1)).to(buffer.dtype))
        return found

    def saved(self, seed: int, spread: float = 1.0) -> list[Tensor]:
        """Tensors for the gradients: what the attention found, and the sums of its weights, among them."""
        kernel = self.gradients()
        found = self.made(seed, spread, kernel)
        names = [buffer.name for buffer in kernel.parameters]
        forward = self.kernel()
        given = {buffer.name: found[names.index(buffer.name)] for buffer in forward.parameters if buffer.name in names}
        run_kernel(forward, [given[buffer.name] for buffer in forward.parameters])
        return found
