"""Random tensor programs as text: each line is one that eager PyTorch can run.

    program_of(7)   →   def program(a, b):
                            t0 = torch.softmax(a, -1)
                            t0[..., 1:] *= 2
                            t1 = F.linear(t0, b)
                            return (t1, a)

A template's names in braces are drawn: `x` is any tensor, the others are described at `Writer`. Programs are called
with one to three choices of sizes, so that what a compiler took for a constant shows. What PyTorch leaves open is left
out: integers made of what none can hold, the sign of NaN, the gradient of a product with NaN in it. So is a norm of
order zero, which lets no gradient through: where a function has nothing else, smelt's result does not require one.

Programs are written by the host, whatever device they are for, so that a number stands for the same one everywhere.
"""

import contextlib
import math
import random
import re
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from tests.pipeline.generated.vocabulary import BOUNDS, GROWN_FROM, MEMORIES, Vocabulary, in_one_memory
from tests.targets import HOST, device_type, reseed

Tensor = torch.Tensor
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 64, 70, 130)
LETTERS = "mnkp"
_LARGE = 40_000
FLOATS = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16}
WHOLE = ("int64", "int32", "uint8", "bool", "int16", "int8")
LAYOUTS = {"straight": 10, "turned": 2, "middle": 2, "gaps": 1, "rolled": 1, "expanded": 1}

_UNARY = [
    "sin", "cos", "tanh", "sigmoid", "relu", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "erf", "floor", "ceil",
    "round", "trunc", "sign", "square", "reciprocal", "expm1", "log1p", "atan", "asinh", "sinh", "cosh", "frac",
    "log2", "exp2", "isnan", "isinf", "isfinite", "logical_not", "erfc", "digamma", "lgamma", "tan", "asin", "acos",
    "atanh", "nan_to_num", "zeros_like", "signbit", "sinc", "logit", "positive", "deg2rad", "special.entr",
    "special.i0e", "special.ndtr", "special.expit", "special.log_ndtr", "erfinv",
]
_ACTIVATIONS = [
    "gelu", "silu", "softplus", "elu", "leaky_relu", "selu", "mish", "hardswish", "hardtanh", "hardsigmoid",
    "logsigmoid", "softsign", "relu6", "celu", "tanhshrink", "softshrink", "hardshrink", "rrelu",
]
_BINARY = [
    "maximum", "minimum", "pow", "atan2", "fmod", "remainder", "eq", "ne", "logical_and", "logical_or", "logical_xor",
    "fmax", "fmin", "hypot", "floor_divide", "true_divide", "logaddexp", "xlogy", "heaviside", "ldexp", "copysign",
    "logaddexp2", "special.xlog1py", "float_power", "clamp_min", "clamp_max", "isclose", "mul", "rsub",
]
_LOSSES = [
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div",
    "soft_margin_loss", "poisson_nll_loss", "hinge_embedding_loss",
]

EXPRESSIONS: dict[int, list[str]] = {  # by how often they are taken
    6: ["{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / {y}", "{x} * {number}", "{number} - {x}", "{x} + {number}"],
    4: [
        "{x}.sum({dims}, keepdim={flag})",
        "{x}.to({float})",
        "{x}.nan_to_num(0, 99, -99).clamp(-99, 99).to({dtype})",
        "F.linear({m}, {weight})",
        "{x} > {y}",
        "{x} // {y}",
    ],
    3: [
        "{v}.mean({dims}, keepdim={flag})",
        "{v}.amax({dims}, keepdim={flag})",
        "torch.softmax({v}, {dim})",
        "F.layer_norm({v}, {v}.shape[-1:], {row}, {row})",
        "torch.where({x} > {number}, {x}, {y})",
        "{m} @ {m}.mT",
        "{v}.transpose({dim}, {other})",
        "{v}.reshape(-1)",
        "torch.cat([{v}, {beside}], {dim})",
        "{v}.index_select({dim}, {along})",
        "torch.gather({v}, {dim}, {places})",
        "F.embedding({rows}, {matrix})",
    ],
    2: [
        "{x}.sum()",
        "{v}.amin({dims}, keepdim={flag})",
        "{v}.var({dims}, correction={bit}, keepdim={flag})",
        "torch.logsumexp({v}, {dims})",
        "torch.log_softmax({v}, {dim})",
        "torch.cumsum({v}, {dim})",
        "torch.max({v}, {dim}, keepdim={flag})[{bit}]",
        "torch.linalg.vector_norm({v}, {order}, dim={dim}, keepdim={flag})",
        "{x}.clamp({number}, {number})",
        "{x}.masked_fill({y} > 0, {number})",
        "{v}.permute({order_of_dims})",
        "{v}[..., ::2]",
        "{v}[1:]",
        "{v}.unsqueeze({dim})",
        "{v}.contiguous()",
        "F.pad({v}, {pads}, value={number})",
        "torch.flip({v}, {dims})",
        "torch.stack([{x}, {same}], {end})",
        "F.scaled_dot_product_attention({m}, {m}, {m}, is_causal={flag})",
        "{v}[{rows}]",
        "torch.index_put({v}, ({rows},), {v}[{rows}], accumulate={flag})",
        "torch.scatter_add({v}, {dim}, {places}, torch.ones_like({places}, dtype={v}.dtype))",
        "{v}.index_add({dim}, {along}, torch.index_select({v}, {dim}, {along}))",
        "F.cross_entropy({matrix}, torch.argmax({matrix}, 1))",
        "F.group_norm({v}, 1)",
        "F.batch_norm({v}, None, None, training=True)",
        "F.rms_norm({v}, {v}.shape[-1:])",
        "F.normalize({v}, dim={dim})",
        "{x} * torch.tensor({number})",
        "torch.tensor({number}, dtype={dtype}) + {x}",
        "{x} ** {number}",
        "{x} % {number}",
        "{x} // {number}",
        "{number} / {x}",
        "torch.where({x} > {number}, {number}, {x})",
        "torch.where({x} > {y}, {number}, {number})",
        "torch.where({f} > {number}, torch.log({f}), {number})",
        "torch.softmax({v}.masked_fill({same} > 0, -torch.inf), {dim})",
        "torch.log_softmax({v}, {dim}, dtype={float})",
        "{v}.sum({dims}, dtype={float}, keepdim={flag})",
        "torch.var_mean({v}, {dims}, correction={bit}, keepdim={flag})[{bit}]",
        "{v}.prod({dim}, keepdim={flag})",
        "torch.as_strided({v}.clone(), ({v}.shape[0], 2), (1, 1), 0)",
        "{v}[{v}.shape[0]:]",
        "torch.einsum('...i,...i->...', {v}, {same})",
        "F.dropout({f}, 0.5)",
        "torch.rand_like({f}) + {f}",
        "F.cross_entropy({matrix}, torch.argmax({matrix}, 1), ignore_index={bit}, reduction={reduction})",
    ],
    1: [
        *(f"torch.{name}({{x}})" for name in _UNARY),
        *(f"F.{name}({{f}})" for name in _ACTIVATIONS),
        *(f"torch.{name}({{x}}, {{y}})" for name in _BINARY),
        *(f"torch.bitwise_{name}({{i}}, {{same}})" for name in ("and", "or", "xor")),
        *(f"F.{name}({{f}}, {{twin}}, reduction='{how}')" for name in _LOSSES for how in ("mean", "sum", "none")),
        *(f"{{v}}.{name}({{dim}}, {{flag}})" for name in ("any", "all", "argmax", "argmin")),
        *(f"F.interpolate({{cube}}, scale_factor=2, mode='{how}')" for how in ("nearest", "linear")),
        *(f"F.interpolate({{cube}}[None], scale_factor=2, mode='{how}')" for how in ("nearest", "bilinear")),
        *(f"F.pad({{cube}}, (1, 1), mode='{how}')" for how in ("reflect", "replicate", "circular")),
        *(
            f"torch.scatter_reduce({{v}}, {{dim}}, {{places}}, torch.gather({{v}}, {{dim}}, {{places}}), '{how}')"
            for how in ("sum", "amax", "amin", "mean", "prod")
        ),
        *(
            f"torch.scatter_reduce({{v}}, {{dim}}, {{places}}, {{v}}, '{how}', include_self=False)"
            for how in ("sum", "amax", "mean")
        ),
        *(f"{{v}}.index_reduce({{dim}}, {{along}}, {{v}}, '{how}')" for how in ("amax", "mean", "prod")),
        "torch.gcd({i}, {twin})",
        "torch.bitwise_left_shift({i}, {twin} & 5)",
        "F.cross_entropy({matrix}, torch.argmax({matrix}, 1), label_smoothing=0.1, reduction={reduction})",
        "F.cross_entropy({matrix}, {matrix}.softmax(1), reduction={reduction})",
        "F.binary_cross_entropy({f}.sigmoid(), {twin}.sigmoid(), reduction={reduction})",
        "F.gaussian_nll_loss({f}, {twin}, {twin}.square(), reduction={reduction})",
        "F.cosine_similarity({v}, {twin}, {dim})",
        "F.cosine_embedding_loss({matrix}, {twin}, torch.ones({matrix}.shape[0]), reduction={reduction})",
        "F.triplet_margin_loss({matrix}, {twin}, {matrix}.flip(0), reduction={reduction})",
        "F.multi_margin_loss({matrix}, torch.argmin({matrix}, 1), reduction={reduction})",
        "F.batch_norm({v}, torch.zeros({v}.shape[1]), torch.ones({v}.shape[1]), training={flag})",
        "F.batch_norm({cube}, {cube}[0, :, 0].detach(), {cube}[0, :, 0].detach().square(), training=True)",
        "F.conv2d({cube}[None], {cube}[None, :, :2, :2], padding={bit})",
        "F.conv_transpose1d({cube}, {cube}[:1, :, :2].mT[:, :{cube}.shape[1]], stride=2)",
        "F.conv1d({cube}, {cube}[:2, :, :2], stride=2, padding=1)",
        "F.max_pool2d({cube}, 3, 2, 1)",
        "F.avg_pool2d({cube}, 2, 2, count_include_pad=False, ceil_mode={flag})",
        "F.max_pool1d({cube}, 3, 2, 1, 2, return_indices=True)[{bit}]",
        "F.adaptive_max_pool1d({cube}, 2)",
        "F.adaptive_avg_pool2d({cube}, (2, 3))",
        "F.lp_pool1d({cube}, 2, 2)",
        "F.glu({v}, {dim})",
        "F.prelu({f}, torch.full((1,), 0.25, dtype={f}.dtype))",
        "F.threshold({f}, {number}, {number})",
        "F.one_hot({rows})",
        "F.embedding_bag(({rows}).reshape(1, -1), {matrix}, mode='mean')",
        "F.local_response_norm({cube}, 2)",
        "F.unfold({cube}[None], 2)",
        "F.interpolate({cube}, size=5, mode='linear', align_corners={flag})",
        "F.grid_sample({cube}[None], {cube}[None, :1, :, :2], align_corners={flag})",
        "{v}.std({dims}, correction=0, keepdim={flag})",
        "torch.logsumexp({v}, {dims}, keepdim={flag})",
        "torch.std_mean({v}, {dims}, keepdim={flag})[{bit}]",
        "torch.median({v}, {dim}, keepdim={flag})[0]",
        "torch.topk({v}, 1, {dim})[0]",
        "torch.nanmean({v}, {dim}, keepdim={flag})",
        "torch.cummin({v}, {dim})[{bit}]",
        "torch.trapezoid({v}, dim={dim})",
        "torch.cov({matrix})",
        "torch.clamp({x}, min={y})",
        "torch.clamp({x}, {y}, {number})",
        "{x} + True",
        "{x} * {flag}",
        "{x}.sub({y}, alpha=2)",
        "torch.addcdiv({x}, {y}, {y}, value={number})",
        "torch.addmm({matrix}.mT @ {matrix}, {matrix}.mT, {matrix}, beta={number}, alpha={number})",
        "torch.outer({v}.reshape(-1)[:9], {v}.reshape(-1)[:9])",
        "torch.diag({matrix}, {bit})",
        "torch.diag_embed({v})",
        "torch.trace({matrix})",
        "torch.rot90({m})",
        "torch.tile({v}, (2,))",
        "torch.hstack([{v}, {v}])",
        "{v}.tensor_split(3, {dim})[{bit}]",
        "{v}.swapaxes({dim}, {other})[..., None]",
        "{x}[{same} > 0]",
        "torch.masked_select({x}, {y} > 0)",
        "{x}.masked_scatter({same} > 0, {twin})",
        "{v}[{rows}, ..., None]",
        "{v}[{rows}][:, {bit}:]",
        "torch.index_put({v}, ({rows},), torch.tensor({number}, dtype={v}.dtype), accumulate={flag})",
        "torch.select_scatter({v}, {v}.select({dim}, 0) * 2, {dim}, {place})",
        "torch.slice_scatter({v}, {v}[:1], 0, 0, 1)",
        "torch.searchsorted(torch.linspace(-1, 1, 7, dtype=F32), {f}.float().contiguous())",
        "torch.bucketize({x}, torch.tensor([-1, 0, 2]))",
        "torch.isin({x}, torch.tensor([0, 1, 2]))",
        "torch.bernoulli({f}.sigmoid())",
        "torch.randint_like({x}, 5)",
        "torch.randn({v}.shape[0], dtype=F32)",
        "torch.vander({v}.reshape(-1)[:5], 3)",
        "torch.cdist({matrix}, {matrix})",
        "torch.renorm({m}, 2, 0, 1.0)",
        "torch.polygamma(1, {f})",
        "{i}.type_as({y})",
        "{i}.to({dtype}).to({float})",
        "{v}.nansum({dims})",
        "torch.cumprod({v}, {dim})",
        "torch.cummax({v}, {dim})[{bit}]",
        "torch.logcumsumexp({v}, {dim})",
        "torch.sort({v}, {dim}, stable=True)[{bit}]",
        "torch.aminmax({v}, dim={dim})[{bit}]",
        "torch.count_nonzero({v}, {dim})",
        "torch.lerp({x}, {y}, {number})",
        "torch.addcmul({x}, {y}, {y}, value={number})",
        "{v}.narrow({dim}, {place}, 1)",
        "{v}.select({dim}, {place})",
        "{v}.squeeze()",
        "{v}[..., :-1]",
        "{v}.unflatten({dim}, (-1, 2))",
        "{v}.flatten({bit})",
        "{x}.clone()",
        "{x}.expand(2, *{x}.shape)",
        "{v}.chunk(2, {dim})[{bit}]",
        "{v}.unbind({dim})[0]",
        "{v}.diagonal(0, {dim}, {other})",
        "{v}.movedim({dim}, {other})",
        "{v}.reshape({v}.shape[0], -1)",
        "{x}.detach()",
        "torch.roll({v}, {place}, {dim})",
        "{v}.repeat(2, {ones})",
        "{v}.repeat_interleave(2, {dim})",
        "torch.tril({m}, {bit})",
        "torch.triu({m})",
        "{v}.unfold({dim}, 2, 1)",
        "torch.diff({v}, dim={dim})",
        "torch.scatter({v}, {dim}, {places}, {number})",
        "{v}.index_fill({dim}, {along}, {number})",
        "{v}.index_copy({dim}, torch.arange({v}.shape[{dim}]), {v})",
        "torch.take_along_dim({v}, {places}, {dim})",
        "{matrix}[:, {along_rows}]",
        "F.nll_loss({matrix}, torch.argmin({matrix}, 1), reduction='none')",
        "torch.baddbmm({cube} @ {cube}.mT, {cube}, {cube}.mT)",
        "F.max_pool1d({cube}, 2, 1)",
        "F.avg_pool1d({cube}, 2, 1)",
        "F.max_pool2d({cube}, 2, 1)",
        "F.avg_pool2d({cube}, 2, 1, 1)",
        "F.adaptive_avg_pool1d({cube}, 2)",
        "F.conv1d({cube}, {cube}[:1, :, :1])",
        "F.instance_norm({cube})",
        "torch.full_like({x}, {number})",
        "torch.arange({x}.numel(), dtype={dtype})",
        "torch.eye({x}.numel() % 9 + 1, dtype=F32)",
        "torch.tensor({number}, dtype=F32)",
        "torch.linspace(0, 1, 5, dtype=F32)",
    ],
}
STATEMENTS = [
    "{x}.add_({y})",
    "{x}.mul_({number})",
    "{x}.sub_({y})",
    "{x}.copy_({twin})",
    "{x}.copy_({number})",
    "{x}.div_({number})",
    "{x}.fill_({number})",
    "{v}[0] = {number}",
    "{v}[0] = {v}[-1]",
    "{v}[..., 1:] *= 2",
    "{v}.transpose(0, -1).add_(1)",
    "{x}[{same} > 0] = {number}",
    "{x} += {y}",
    "{x} *= {number}",
    "{x}.relu_()",
    "{x}.clamp_({number}, {number})",
    "{x}.masked_fill_({same} > 0, {number})",
    "{x}.zero_()",
    "{v}[1:].add_({number})",
    "{v}[1:] = {v}[:-1].clone()",
    "{v}.select({dim}, {place}).mul_({number})",
    "{v}.narrow({dim}, {place}, 1).copy_({v}.narrow({dim}, 0, 1).clone())",
    "{v}.view(-1)[::2] = {number}",
    "{v}.diagonal(0, {dim}, {other}).fill_({number})",
    "{v}.flatten().sub_({number})",
    "{v}.scatter_({dim}, {places}, {number})",
    "{v}.scatter_add_({dim}, {places}, torch.ones_like({places}, dtype={v}.dtype))",
    "{v}.index_add_({dim}, {along}, torch.index_select({v}, {dim}, {along}))",
    "{v}.index_put_(({rows},), torch.tensor({number}, dtype={v}.dtype), accumulate={flag})",
    "{v}[{rows}] = {number}",
    "{v}[{rows}] += {number}",
    "{v}.cumsum_({dim})",
    "{f}.exp_()",
    "{f}.addcmul_({twin}, {twin}, value={number})",
    "{f}.lerp_({twin}, 0.25)",
]


@dataclass(frozen=True)
class Input:
    """A tensor a program is called with; letters among its dims stand for sizes that a call chooses."""

    name: str
    dtype: str
    dims: tuple[Any, ...]
    layout: str
    grad: bool
    special: bool  # has infinities, NaN, zeros of both signs and a denormal
    place: float | None = None  # where it lies in memory that it has with others, see `vocabulary.in_one_memory`
    memory: str = ""  # how it came to lie there

    def shape(self, sizes: dict[str, int]) -> list[int]:
        return [sizes[each] if isinstance(each, str) else each for each in self.dims]

    def tensor(self, sizes: dict[str, int], draw: int, exact: bool = False) -> Tensor:
        """With `exact`, the same values in float64."""
        shape = self.shape(sizes)
        generator = torch.Generator().manual_seed((draw * 31 + ord(self.name) * 1009) % 2**31)
        base, view = _layout(self.layout, shape)
        if self.dtype in FLOATS:
            made = torch.randn(base, generator=generator, dtype=torch.float64, device=HOST)
            if self.special and made.numel():
                for value in (torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40):
                    made.view(-1)[torch.randint(made.numel(), (1,), generator=generator, device=HOST)] = value
            made = made.to(FLOATS[self.dtype])
            made = made.double() if exact else made
        else:
            least = 0 if self.dtype in ("uint8", "bool") else -9
            made = torch.randint(least, 10, base, generator=generator, device=HOST).to(getattr(torch, self.dtype))
        return view(made.to(torch.get_default_device())).detach().requires_grad_(self.grad)


def tensors_of(inputs: tuple[Input, ...], sizes: dict[str, int], draw: int, exact: bool = False) -> list[Tensor]:
    """The tensors a program is called with."""
    made = [each.tensor(sizes, draw, exact) for each in inputs]
    placed = [(number, each, each.place) for number, each in enumerate(inputs) if each.place is not None]
    if placed:
        places = [(each.shape(sizes), place) for _, each, place in placed]
        _, others = in_one_memory(placed[0][1].memory, places, made[placed[0][0]].detach())
        for (number, each, _), tensor in zip(placed, others, strict=True):
            made[number] = tensor.requires_grad_(each.grad)
    return made


def _layout(layout: str, shape: list[int]) -> tuple[list[int], Any]:
    """The shape of what lies in memory, and how to look at it."""
    if layout == "turned" and len(shape) >= 2:
        return [*shape[:-2], shape[-1], shape[-2]], lambda made: made.mT
    if layout == "middle" and shape:
        return [shape[0] + 2, *shape[1:]], lambda made: made[1:-1]
    if layout == "gaps" and shape:
        return [*shape[:-1], shape[-1] * 2], lambda made: made[..., ::2]
    if layout == "rolled" and len(shape) >= 3:
        return [*shape[1:], shape[0]], lambda made: made.movedim(-1, 0)
    if layout == "expanded" and shape:
        return [1, *shape[1:]], lambda made: made.expand(shape)
    return shape, lambda made: made


@dataclass(frozen=True)
class Program:
    """Lines between `def` and `return`, and how it is called."""

    seed: int
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    inputs: tuple[Input, ...]
    sizes: tuple[dict[str, int], ...]
    dynamic: bool | None = None

    @property
    def random(self) -> bool:
        """Whether numbers are drawn, which are others in float64."""
        return any(re.search(r"dropout|rand|bernoulli", line) for line in self.lines)

    @property
    def text(self) -> str:
        body = "".join(f"    {line}\n" for line in self.lines)
        given, returned = ", ".join(each.name for each in self.inputs), ", ".join(self.returned)
        return f"def program({given}):\n{body}    return ({returned},)\n"


class _Nothing(Exception):
    """No tensor of the wanted kind is there."""


class Writer:
    """Lines for a program whose tensors so far are `pool`. The first tensor of a line is the one others must suit.

    x any, f of floats, i of integers, v with dims, m of floats with 2 or 3 dims, matrix, cube (3 dims, floats);
    y broadcasts with it, same has its shape, twin its dtype too, row fits its last dim, weight multiplies it,
    beside is equal but along `dim`; along, places, rows are indices into it
    """

    def __init__(self, chance: random.Random, pool: dict[str, Tensor]) -> None:
        self.chance, self.pool = chance, pool
        self.drawn: dict[str, str] = {}
        self.first: Tensor | None = None

    def write(self, template: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self._draw(found[1]), template)

    def _draw(self, field: str) -> str:
        if field == "edge" and field not in self.drawn:
            self._draw("bound")
        if field in ("number", "flag", "bit", "row", "reduction"):  # may differ from one place to the next
            return str(getattr(self, f"_{field}")())
        if field not in self.drawn:
            self.drawn[field] = str(getattr(self, f"_{field}")())
        return self.drawn[field]

    def _pick(self, fits: Any, orelse: str | None = None) -> str:
        names = [name for name, tensor in self.pool.items() if fits(tensor)]
        if not names:
            if orelse is None:
                raise _Nothing
            return orelse
        name = names[max(self.chance.randrange(len(names)) for _ in range(2))]  # the later ones rather
        if self.first is None:
            self.first = self.pool[name]
        return name

    @property
    def _it(self) -> Tensor:
        assert self.first is not None
        return self.first

    def _x(self) -> str:
        return self._pick(lambda t: True)

    def _f(self) -> str:
        return self._pick(lambda t: t.is_floating_point())

    def _i(self) -> str:
        return self._pick(lambda t: not t.is_floating_point())

    def _v(self) -> str:
        return self._pick(lambda t: t.dim() > 0)

    def _m(self) -> str:
        return self._pick(lambda t: t.dim() in (2, 3) and t.is_floating_point())

    def _matrix(self) -> str:
        return self._pick(lambda t: t.dim() == 2 and t.is_floating_point() and t.numel())

    def _cube(self) -> str:
        return self._pick(lambda t: t.dim() == 3 and t.is_floating_point())

    def _y(self) -> str:
        return self._pick(lambda t: _broadcast(t, self._it))

    def _same(self) -> str:
        return self._pick(lambda t: t.shape == self._it.shape)

    def _twin(self) -> str:
        return self._pick(lambda t: t.shape == self._it.shape and t.dtype == self._it.dtype)

    def _row(self) -> str:
        return self._pick(lambda t: t.shape == self._it.shape[-1:] and t.dtype == self._it.dtype, "None")

    def _weight(self) -> str:
        return self._pick(lambda t: t.dim() == 2 and t.shape[1] == self._it.shape[-1] and t.dtype == self._it.dtype)

    def _beside(self) -> str:
        dim = int(self._draw("dim")) % self._it.dim()

        def fits(t: Tensor) -> bool:
            sizes = [pair for n, pair in enumerate(zip(t.shape, self._it.shape, strict=False)) if n != dim]
            return t.dim() == self._it.dim() and all(a == b for a, b in sizes)

        return self._pick(fits)

    def _dim(self) -> int:
        return self.chance.randrange(-max(self._it.dim(), 1), max(self._it.dim(), 1))

    _other = _dim

    def _dims(self) -> list[int]:
        count = self._it.dim()
        return self.chance.sample(range(count), self.chance.randint(min(count, 1), count))

    def _order_of_dims(self) -> list[int]:
        return self.chance.sample(range(self._it.dim()), self._it.dim())

    def _ones(self) -> str:
        return ", ".join(["1"] * (self._it.dim() - 1))

    def _number(self) -> Any:
        return self.chance.choice([0, 1, -1, 2, 3, 0.5, -0.25, 1.5, 2.0, 0.1, -3, 1e-3])

    def _bound(self) -> float:
        return self.chance.choice(BOUNDS)

    def _edge(self) -> str:
        """Floats, of 16 bits if there are some; some are the bound, rounded to their dtype."""
        half = [name for name, tensor in self.pool.items() if tensor.dtype in (torch.bfloat16, torch.float16)]
        name = self._pick(lambda t: t.dtype in (torch.bfloat16, torch.float16)) if half else self._f()
        rounded = torch.tensor(float(self.drawn["bound"]), dtype=self.pool[name].dtype).item()
        return f"torch.where({name} > {self.chance.choice([0, 0.5, -0.5])}, {name}, {rounded!r})"

    def _order(self) -> str:
        return self.chance.choice(["1", "2", "torch.inf", "3"])

    def _reduction(self) -> str:
        return repr(self.chance.choice(["mean", "sum", "none"]))

    def _flag(self) -> bool:
        return self.chance.random() < 0.5

    def _bit(self) -> int:
        return self.chance.randrange(2)

    def _end(self) -> int:
        return self.chance.choice([0, -1])

    def _dtype(self) -> str:
        return self.chance.choice([*FLOATS, *(f"torch.{each}" for each in WHOLE)])

    def _float(self) -> str:
        return self.chance.choice([*FLOATS])

    def _place(self) -> int:
        return self.chance.randrange(max(self._it.shape[int(self._draw("dim"))], 1))

    def _pads(self) -> list[int]:
        return [self.chance.randrange(-1, 3) for _ in range(2 * self.chance.randint(1, self._it.dim()))]

    def _places(self) -> str:
        name = self._pick(lambda t: t.dtype == torch.int64 and t.dim() == self._it.dim())
        return f"({name} % {self.drawn['v']}.shape[{self._draw('dim')}])"

    def _along(self) -> str:
        size = f"{self.drawn['v']}.shape[{self._draw('dim')}]"
        name = self._pick(lambda t: t.dtype == torch.int64 and t.dim() == 1, "")
        return f"({name} % {size})" if name else f"torch.arange({size} - 1, -1, -1)"

    def _rows(self) -> str:
        kinds = (torch.int64, torch.int32)
        name = self._pick(lambda t: t.dtype in kinds, "torch.tensor([0, 1, 1])")
        return f"({name} % {self.drawn.get('v') or self._draw('matrix')}.shape[0])"

    def _along_rows(self) -> str:
        name = self._pick(lambda t: t.dtype == torch.int64, "torch.tensor([0, 1, 1])")
        return f"({name} % {self.drawn['matrix']}.shape[1])"


def _broadcast(a: Tensor, b: Tensor) -> bool:
    try:
        torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        return False
    return True


def names(exact: bool = False) -> dict[str, Any]:
    """What programs can name; with `exact`, every float is one of 64 bits."""
    floats: dict[str, Any] = dict.fromkeys(FLOATS, torch.float64) if exact else dict(FLOATS)
    return {"torch": torch, "F": F, **floats}


def _inputs(chance: random.Random) -> tuple[Input, ...]:
    special = chance.random() < 0.12
    made = []
    for name in "abcd"[: chance.randint(1, 4)]:
        dtype = chance.choices([*FLOATS, *WHOLE], [10, 2, 3, 1, 3, 1, 1, 1, 0.5, 0.5])[0]
        count = chance.choices(range(5), [1, 4, 8, 5, 1])[0]
        dims = tuple(chance.choice([*LETTERS, *LETTERS, chance.choice((1, 2, 3, 4, 8, 16, 0))]) for _ in range(count))
        layout = chance.choices([*LAYOUTS], [*LAYOUTS.values()])[0]
        floats = dtype in FLOATS
        made.append(Input(name, dtype, dims, layout, floats and chance.random() < 0.5, floats and special))
    return tuple(made)


def _grown(chance: random.Random, words: Vocabulary, inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """The inputs, those of floats rather of 16 bits, or the first few in one memory."""
    if words.bounded:
        kinds = chance.choices(["F16", "BF16", None], [2, 3, 1], k=len(inputs))
        inputs = tuple(
            replace(each, dtype=kind) if kind and each.dtype in FLOATS else each
            for each, kind in zip(inputs, kinds, strict=True)
        )
    if not words.overlaps:
        return inputs
    first, memory = inputs[0], chance.choice(MEMORIES)
    while len(inputs) < 2 or (len(inputs) < 4 and chance.random() < 0.3):
        inputs = (*inputs, replace(first, name="abcd"[len(inputs)]))
    made = []
    for number, each in enumerate(inputs):
        if number < 2 or chance.random() < 0.5:
            dims = first.dims if chance.random() < 0.7 else each.dims
            place = chance.choice([0.0, 0.25, 0.5, 1.0, 0.125, 1.5]) if number else 0.0
            grad = first.dtype in FLOATS and chance.random() < 0.2
            each = Input(each.name, first.dtype, dims, "straight", grad, first.special, place, memory)
        made.append(each)
    return tuple(made)


def _bounded(sizes: dict[str, int], inputs: tuple[Input, ...]) -> dict[str, int]:
    """The sizes, halved until no input is too large."""
    while any(math.prod(sizes.get(dim, dim) for dim in each.dims) > _LARGE // 4 for each in inputs):
        sizes = {letter: -(-size // 2) for letter, size in sizes.items()}
    return sizes


def _run(lines: list[str], inputs: tuple[Input, ...], sizes: dict[str, int], seed: int) -> dict[str, Tensor] | None:
    """The tensors after these lines; None where they raise, or yield something too large."""
    given = tensors_of(inputs, sizes, seed)
    scope = {**names(), **{each.name: tensor for each, tensor in zip(inputs, given, strict=True)}}
    reseed(seed)
    try:
        exec("\n".join(lines), scope)
    except Exception:
        return None
    found = {name: value for name, value in scope.items() if isinstance(value, Tensor)}
    fine = all(t.numel() <= _LARGE and t.dim() <= 5 and not t.is_complex() for t in found.values())
    return found if fine else None


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Within, tensors are made on the host."""
    return contextlib.nullcontext() if device_type() == HOST else torch.device(HOST)


def program_of(seed: int) -> Program:
    """Program number `seed`."""
    with on_host():
        return _written(seed)


def _written(seed: int) -> Program:
    chance = random.Random(seed)
    inputs = _inputs(chance)
    words = Vocabulary(chance) if seed >= GROWN_FROM else None
    inputs = _grown(chance, words, inputs) if words else inputs
    first = _bounded({letter: chance.choice(SIZES) for letter in LETTERS}, inputs)
    sizes = [first]
    while chance.random() < 0.35 and len(sizes) < 3:
        others = {each: chance.choice(SIZES) for each in chance.sample(LETTERS, chance.randint(1, 3))}
        sizes.append(_bounded(first | others, inputs))
    templates = [each for several in EXPRESSIONS.values() for each in several]
    weights = [weight for weight, several in EXPRESSIONS.items() for _ in several]
    pool = {each.name: tensor for each, tensor in zip(inputs, tensors_of(inputs, first, seed), strict=True)}
    lines: list[str] = []
    wanted, made = chance.randint(2, 14), 0
    for _ in range(80):
        writes = chance.random() < (words.writes if words else 0.07)
        if words:
            template = words.statement(chance, STATEMENTS) if writes else words.expression(chance, templates, weights)
        else:
            template = chance.choice(STATEMENTS) if writes else chance.choices(templates, weights)[0]
        try:
            line = Writer(chance, pool).write(template)
        except _Nothing:
            continue
        line = line if writes else f"t{made} = {line}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grown = _run([*lines, line], inputs, first, seed)
        if grown is None:
            continue
        lines, pool, made = [*lines, line], grown, made + (not writes)
        if len(lines) == wanted:
            break
    last = f"t{made - 1}" if made else inputs[0].name
    returned = dict.fromkeys([last, *(chance.choice([*pool]) for _ in range(chance.randint(0, 3)))])
    dynamic = chance.choices([None, True, False], [6, 1, 1])[0]
    return Program(seed, tuple(lines), tuple(returned), inputs, tuple(sizes), dynamic)
