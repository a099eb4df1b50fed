"""Functions of PyTorch that ask for sizes as integers inside, spelled out in operators that take symbols.

    torch.linspace(0, 1, s0)   →   torch.where(i < s0 // 2, i * step, 1 - (s0 - 1 - i) * step), i = torch.arange(s0)

For static shapes PyTorch's own decomposition is called, except for the few whose result layout differs for a subclass
of tensors such as a fake tensor (`FOR_TENSORS`), and for recurrent layers. Graphs keep the function by name:
capture runs its decomposition on fake tensors, for symbolic shapes, and the tracer of the autograd stage records the
operators. Rare cases return `NotImplemented`, and sizes are specialized.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.base.torch_internals import internal
from smelt.base.torch_originals import BASE
from smelt.device.host_library import HOST, on_host
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import FakeTensor
from smelt.meta.recurrent_layers import by_cudnn
from smelt.meta.recurrent_on_host import ON_HOST
from smelt.symbolic.expressions import Expression, ShapeEnv
from smelt.symbolic.symnode import as_number, is_symbolic, surely_equal

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    from smelt.base.torch_originals import functional as F
    from smelt.base.torch_originals import pristine as torch

Spelled = Callable[..., Any]
_PRECISE = (torch.float32, torch.float64)  # what PyTorch computes in one step is not rounded in between


def spell_out(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, in_place: bool = False) -> Any:
    """What the call returns, by operators that take symbols; `NotImplemented` where it is to be called as it is."""
    spelled = FOR_TENSORS.get(function)
    if spelled is not None:
        return spelled(*args, **kwargs)
    result = by_cudnn(function, args, kwargs)
    if result is not NotImplemented:
        return result
    layers = ON_HOST.get(function)
    if layers is not None:
        return NotImplemented if torch._C._is_any_autocast_enabled() else layers(*args, **kwargs)
    spelled = SPELLED.get(function) or (IN_PLACE.get(function) if in_place else None)
    if spelled is None or torch._C._is_any_autocast_enabled() or not _vary((*args, *kwargs.values())):
        return NotImplemented
    return spelled(*args, **kwargs)


def _vary(values: Sequence[Any]) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if any(map(is_symbolic, value.shape)):
                return True
        elif is_symbolic(value) or (isinstance(value, tuple | list) and _vary(value)):
            return True
    return False


def _made_with(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Options of a factory of floats; None where one is given that is rare."""
    factory_options = {name: value for name, value in options.items() if value is not None and value is not False}
    dtype = factory_options.setdefault("dtype", torch.get_default_dtype())
    return factory_options if factory_options.keys() <= {"dtype", "device"} and dtype in _PRECISE else None


# Tensors made of numbers.


def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> Any:
    """From both ends to the middle, as PyTorch does."""
    factory_options = _made_with(options)
    if factory_options is None or not all(type(each) in (int, float) for each in (start, end)) or steps < 2:
        return NotImplemented
    place = torch.arange(steps, **factory_options)
    step = (float(end) - float(start)) / (steps - 1)
    return torch.where(place < steps // 2, start + place * step, end - (steps - 1 - place) * step)


def _logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> Any:
    powers = _linspace(start, end, steps, **options)
    return powers if powers is NotImplemented else torch.pow(base, powers)


def _frequencies(n: Any, d: float = 1.0, **options: Any) -> Any:
    factory_options = _made_with(options)
    if factory_options is None:
        return NotImplemented
    places = (torch.arange((n + 1) // 2, **factory_options), torch.arange(-(n // 2), 0, **factory_options))
    return torch.cat(places) * (1.0 / (n * d))


def _real_frequencies(n: Any, d: float = 1.0, **options: Any) -> Any:
    factory_options = _made_with(options)
    return NotImplemented if factory_options is None else torch.arange(n // 2 + 1, **factory_options) * (1.0 / (n * d))


def _window(mean: float) -> Spelled:
    def spelled(length: Any, periodic: bool = True, **options: Any) -> Any:
        factory_options = _made_with(options)
        if factory_options is None or type(periodic) is not bool or length < 2:
            return NotImplemented
        turns = length if periodic else length - 1
        return mean - (1 - mean) * torch.cos(torch.arange(length, **factory_options) * (2 * math.pi / turns))

    return spelled


# Elements moved about.


def _kron(a: Any, b: Any) -> Any:
    rank = max(a.dim(), b.dim())
    first, second = ((1,) * (rank - each.dim()) + tuple(each.shape) for each in (a, b))
    wide = a.reshape([size for each in first for size in (each, 1)])
    product = wide * b.reshape([size for each in second for size in (1, each)])
    return product.reshape([one * other for one, other in zip(first, second, strict=True)])


def _take_along_dim(value: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        return value.reshape(-1).gather(0, indices.reshape(-1))
    axis = dim % value.dim() if value.dim() else 0
    others = [(one, other) for place, (one, other) in enumerate(zip(value.shape, indices.shape, strict=False))
              if place != axis]  # fmt: skip
    if value.dim() != indices.dim() or any(one != other for one, other in others):
        return NotImplemented
    return value.gather(axis, indices)


def _roll(value: Any, shifts: Any, dims: Any = ()) -> Any:
    if dims not in ((), []):
        return NotImplemented
    return value.reshape(-1).roll(shifts, 0).reshape(value.shape)


def _diag(value: Any, diagonal: int = 0) -> Any:
    return value.diagonal(diagonal).clone() if value.dim() == 2 else NotImplemented


def _trace(value: Any) -> Any:
    plain = value.dim() == 2 and (not value.requires_grad or _derives_the_diagonal())
    return value.diagonal().sum() if plain else NotImplemented


@functools.cache
def _derives_the_diagonal() -> bool:
    """Whether PyTorch's derivative of `trace` is on the diagonal alone: of matrices with more rows than columns that
    depends on its version."""
    with no_dispatch(), torch._C.DisableTorchFunction():
        gradient = torch.ops.aten.trace_backward.default(torch.ones(()), [3, 1])
        return float(gradient.sum()) == 1.0


def _block_diag(*blocks: Any) -> Any:
    if any(block.dim() != 2 or block.dtype is not blocks[0].dtype for block in blocks):
        return NotImplemented
    widths = [block.shape[1] for block in blocks]
    rows = [F.pad(block, (sum(widths[:place]), sum(widths[place + 1 :]))) for place, block in enumerate(blocks)]
    return torch.cat(rows)


def _channel_shuffle(value: Any, groups: int) -> Any:
    batch, channels, *rest = value.shape
    if channels % groups:
        return NotImplemented
    parts = value.reshape(batch, groups, channels // groups, *rest)
    return parts.transpose(1, 2).contiguous().reshape(value.shape)


def _pixel_shuffle(value: Any, by: int) -> Any:
    if value.dim() < 3 or value.shape[-3] % (by * by):
        return NotImplemented
    *outer, channels, rows, cols = value.shape
    parts = value.reshape(-1, channels // (by * by), by, by, rows, cols).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(*outer, channels // (by * by), rows * by, cols * by)


def _pixel_unshuffle(value: Any, by: int) -> Any:
    if value.dim() < 3 or value.shape[-1] % by or value.shape[-2] % by:
        return NotImplemented
    *outer, channels, rows, cols = value.shape
    parts = value.reshape(-1, channels, rows // by, by, cols // by, by).permute(0, 1, 3, 5, 2, 4)
    return parts.reshape(*outer, channels * by * by, rows // by, cols // by)


def _pad_sequence(parts: Sequence[Any], batch_first: bool = False, padding: float = 0.0, side: str = "right") -> Any:
    if side != "right" or any(part.dim() == 0 for part in parts):
        return NotImplemented
    longest = functools.reduce(lambda one, other: other if other > one else one, [part.shape[0] for part in parts])
    unpadded = (0, 0) * (parts[0].dim() - 1)
    padded = [F.pad(part, (*unpadded, 0, longest - part.shape[0]), value=padding) for part in parts]
    return torch.stack(padded, 0 if batch_first else 1)


# Pooling and norms.


def _max_pool1d(
    value: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Without a gradient to come PyTorch has code of its own for it, whose results are contiguous."""
    if return_indices:
        return NotImplemented
    if not _vary((value, kernel_size, stride, padding, dilation)):
        pooled = torch.max_pool1d(value, kernel_size, stride or [], padding, dilation, ceil_mode)
    else:
        pooled = _max_pool1d_of_symbols(value, kernel_size, stride, padding, dilation, ceil_mode)
    with_gradient = value.requires_grad and torch.is_grad_enabled()
    return pooled if with_gradient or not on_host(value.device) else pooled.contiguous()


def _rrelu(
    input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: Any = False, **rest: Any
) -> Any:
    """Contiguous, whatever the layout of its argument. The form of it that writes nothing returns it otherwise."""
    if rest or inplace:  # which of `torch.rrelu` is a generator
        return NotImplemented
    return torch.rrelu(input, lower, upper, training).contiguous()


def _max_pool1d_of_symbols(
    value: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Any:
    sizes = [each[0] if isinstance(each, tuple | list) and each else each
             for each in (kernel_size, stride or kernel_size, padding, dilation)]  # fmt: skip
    kernel, step, pad, spread = sizes
    wide = value.unsqueeze(-2)
    return F.max_pool2d(wide, (1, kernel), (1, step), (0, pad), (1, spread), ceil_mode).squeeze(-2)


def _avg_pool2d(value: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **options: Any) -> Any:
    """Of the whole image: a window as large as that has no size of its own."""
    window = tuple(kernel_size) if isinstance(kernel_size, tuple | list) else (kernel_size, kernel_size)
    if rest or options or stride not in (None, [], ()) or padding != 0 or len(window) != 2:
        return NotImplemented
    if value.dim() < 3 or any(side != size for side, size in zip(window, value.shape[-2:], strict=True)):
        return NotImplemented
    return value.mean((-2, -1), keepdim=True)


def _over_all(original: Any) -> Spelled:
    """`std` and its kin of all elements: the derivative of that counts them, and of dimensions one by one does not."""

    def spelled(value: Any, *args: Any, **options: Any) -> Any:
        unbiased = args[0] if args else options.pop("unbiased", True)
        if len(args) > 1 or type(unbiased) is not bool or not options.keys() <= {"correction"} or value.dim() == 0:
            return NotImplemented
        return original(value, dim=tuple(range(value.dim())), correction=options.get("correction", int(unbiased)))

    return spelled


def _count_nonzero(value: Any, dim: Any = None) -> Any:
    return (value != 0).sum() if dim is None else (value != 0).sum(dim)


def _is_all_true(value: Any) -> Any:
    return value.all()


# Activations and losses.


def _glu(value: Any, dim: int = -1) -> Any:
    if value.dtype not in _PRECISE or value.dim() == 0 or value.shape[dim] % 2:
        return NotImplemented
    half = value.shape[dim] // 2
    return value.narrow(dim, 0, half) * torch.sigmoid(value.narrow(dim, half, half))


def _prelu(value: Any, weight: Any) -> Any:
    if value.dtype not in _PRECISE or weight.dtype is not value.dtype or weight.dim() > 1:
        return NotImplemented
    if weight.numel() != 1:
        if value.dim() < 2 or weight.dim() != 1 or weight.shape[0] != value.shape[1]:
            return NotImplemented
        weight = weight.reshape(-1, *[1] * (value.dim() - 2))
    return torch.where(value > 0, value, weight * value)


def _written(value: Any, result: Any) -> Any:
    """`result` becomes what `value` holds. The gradient of what it held before is zero, for which PyTorch asks sizes in
    integers; so that is let go of first."""
    if torch.is_grad_enabled() and value.requires_grad:
        value.detach_()
    return value.copy_(result)


def _may_be_written(value: Any) -> bool:
    return not (torch.is_grad_enabled() and value.requires_grad and (value.is_leaf or value._is_view()))


def _in_place(outside: Spelled) -> Spelled:
    """A function that writes its result into its first argument: of what it is made of, functionalization asks meta
    kernels that take no symbols."""

    def spelled(value: Any, *args: Any, **kwargs: Any) -> Any:
        return _written(value, outside(value.clone(), *args, **kwargs)) if _may_be_written(value) else NotImplemented

    return spelled


def _if_in_place(function: Spelled) -> Spelled:
    def spelled(value: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        flag = bool(args) and args[-1] is True
        if not (inplace or flag) or not _may_be_written(value):
            return NotImplemented
        return _written(value, function(value.clone(), *(args[:-1] if flag else args), **kwargs))

    return spelled


def _reduced(loss: Any, reduction: Any) -> Any:
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _loss(each: Spelled, options: int) -> Spelled:
    """A loss of which `each` makes the terms of its tensors and so many options."""

    def spelled(*args: Any, **kwargs: Any) -> Any:
        names = ("size_average", "reduce", "reduction")
        reduction_options = dict(zip(names, args[options:], strict=False))
        reduction_options |= {name: kwargs.pop(name) for name in names if name in kwargs}
        reduction = reduction_options.pop("reduction", "mean")
        if any(value is not None for value in reduction_options.values()) or reduction not in ("none", "mean", "sum"):
            return NotImplemented
        terms = each(*args[:options], **kwargs)
        return terms if terms is NotImplemented else _reduced(terms, reduction)

    return spelled


def _ranking(input1: Any, input2: Any, target: Any, margin: float = 0) -> Any:
    return (-target * (input1 - input2) + margin).clamp_min(0)


def _hinge(input: Any, target: Any, margin: float = 1.0) -> Any:
    zeros = torch.zeros_like(input)
    return torch.where(target != 1, (margin - input).clamp_min(0), zeros) + torch.where(target != -1, input, zeros)


def _cosine_embedding(input1: Any, input2: Any, target: Any, margin: float = 0) -> Any:
    if target.dim() not in (0, 1) or input1.dim() != target.dim() + 1 or input2.dim() != input1.dim():
        return NotImplemented
    dot, *squares = ((one * other).sum(target.dim())
                     for one, other in ((input1, input2), (input1, input1), (input2, input2)))  # fmt: skip
    cosine = dot / ((squares[0] + 1e-12) * (squares[1] + 1e-12)).sqrt()
    apart, zeros = (cosine - margin).clamp_min(0), torch.zeros_like(cosine)
    return torch.where(target == 1, 1 - cosine, zeros) + torch.where(target == -1, apart, zeros)


def _soft_margin(input: Any, target: Any) -> Any:
    return (-input * target).exp().log1p()


def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    if x1.dtype not in _PRECISE or x2.dtype is not x1.dtype:
        return NotImplemented
    x1, x2 = torch.broadcast_tensors(x1, x2)  # type: ignore[no-untyped-call]
    norms = [torch.linalg.vector_norm(each, 2, dim=dim, keepdim=True).clone() for each in (x1, x2)]
    with torch.no_grad():  # the gradient is that of the norm, however small
        for norm in norms:
            norm.copy_(norm.clamp_min(eps))
    return ((x1 / norms[0]) * (x2 / norms[1])).sum(dim)


def _cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    old = (size_average, reduce) != (None, None) or reduction not in ("none", "mean", "sum")
    if pos_weight is None or old or input.dtype not in _PRECISE or input.dim() != target.dim():
        return NotImplemented
    if any(one != other for one, other in zip(input.shape, target.shape, strict=True)):
        return NotImplemented
    terms = (1 - target) * input - ((pos_weight - 1) * target + 1) * F.logsigmoid(input)
    return _reduced(terms if weight is None else terms * weight, reduction)


def _bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    # Two at a time: of three, opt_einsum (where it is installed) chooses the order by the sizes.
    halfway = torch.einsum("...i,oij->...oj", input1, weight)
    products = torch.einsum("...oj,...j->...o", halfway, input2)
    return products if bias is None else products + bias


# Products of matrices. PyTorch before 2.13 reads the sizes of a batch of them as integers.


def _matmul(input: Any, other: Any, **rest: Any) -> Any:
    if rest or not all(isinstance(each, torch.Tensor) for each in (input, other)):
        return NotImplemented
    left, right = input, other
    least, most = sorted((left.dim(), right.dim()))
    transposed = left.dim() == 2 and most > 2  # a matrix by a batch, which PyTorch lays out in more than one way
    if least == 0 or most < 3 or transposed or not _multiplies_by_integers():
        return NotImplemented
    if least < 3 and _folds(left, right):
        return _folded(left, right)
    rows = left if left.dim() > 1 else left[None]
    columns = right if right.dim() > 1 else right[:, None]
    batch = torch.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])  # type: ignore[no-untyped-call]
    flat = [each.expand(*batch, *each.shape[-2:]).reshape(-1, *each.shape[-2:]) for each in (rows, columns)]
    kept = [*left.shape[-2:-1], *(right.shape[-1:] if right.dim() > 1 else ())]
    return torch.ops.aten._unsafe_view.default(torch.bmm(*flat), [*batch, *kept])


def _folds(left: Any, right: Any) -> bool:
    """Whether PyTorch multiplies a matrix of all rows by the smaller one, as it does where that copies nothing, or
    where otherwise the gradient of the smaller one would be as large as the batch."""
    larger, smaller = (left, right) if left.dim() >= right.dim() else (right.mT, left)
    if smaller.requires_grad:
        return True
    sizes, strides = larger.shape, larger.stride()
    return all(surely_equal(strides[i], strides[i + 1] * sizes[i + 1]) for i in range(larger.dim() - 2))


def _folded(left: Any, right: Any) -> Any:
    larger, smaller = (left, right) if left.dim() >= right.dim() else (right.mT, left)
    rows = larger.reshape(-1, larger.shape[-1])
    products = torch.mm(rows, smaller) if smaller.dim() == 2 else torch.mv(rows, smaller)
    return torch.ops.aten._unsafe_view.default(products, [*larger.shape[:-1], *smaller.shape[1:]])


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    if weight.dim() != 2 or (bias is not None and input.is_contiguous()):  # which PyTorch does by symbols
        return NotImplemented
    products = _matmul(input, weight.t())
    return products if bias is None or products is NotImplemented else products + bias


def _applied(input: Any, weight: Any, bias: Any = None) -> Any:
    """`F.linear` within what is spelled out, which nobody spells out again."""
    result = _linear(input, weight, bias)
    return F.linear(input, weight, bias) if result is NotImplemented else result


def _multi_head_attention(*args: Any, **kwargs: Any) -> Any:
    """PyTorch's function, which is written in Python, with its products spelled out."""
    return _attending()(*args, **kwargs) if _multiplies_by_integers() else NotImplemented


@functools.cache
def _attending() -> Callable[..., Any]:
    function: Any = F.multi_head_attention_forward
    taken = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    names = {**function.__globals__, **taken, "linear": _applied}
    for name in ("_in_projection", "_in_projection_packed"):
        names[name] = _among(function.__globals__[name], names)
    return _among(function, names)


def _among(function: Any, names: dict[str, Any]) -> Callable[..., Any]:
    """A function of PyTorch's with other functions that it calls by name."""
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Where no fused kernel serves PyTorch writes it out itself: products, whose sizes it reads, and a softmax."""
    if enable_gqa or (attn_mask is not None and is_causal) or not _multiplies_by_integers():
        return NotImplemented
    if not _is_written_out(query, dropout_p):
        return NotImplemented
    factor = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else abs(scale))
    scores = _multiplied(query * (-factor if scale is not None and scale < 0 else factor), key.mT * factor)
    if is_causal:
        attn_mask = query.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(attn_mask.logical_not(), -math.inf)
    weights = torch.ops.aten._safe_softmax.default(scores if attn_mask is None else scores + attn_mask, -1)
    return _multiplied(F.dropout(weights, dropout_p) if dropout_p > 0 else weights, value)


def _is_written_out(query: Any, dropout_p: float) -> bool:
    """Whether none of the fused kernels takes attention for sure: of 16 bits products are computed in more."""
    if query.dtype not in _PRECISE or query.dim() < 3 or is_symbolic(query.shape[-1]):
        return False
    if on_host(query.device):
        return dropout_p > 0 or not torch._C._get_flash_sdp_enabled()
    return query.dtype is torch.float64


def _multiplied(left: Any, right: Any) -> Any:
    products = _matmul(left, right)
    return torch.matmul(left, right) if products is NotImplemented else products


@functools.cache
def _multiplies_by_integers() -> bool:
    """Whether this version of PyTorch relies on the sizes of a batch that it multiplies. Where none does any more it is
    not tried: PyTorch would import sympy, which takes a second."""
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
        return False
    shape_env = ShapeEnv()
    size = as_number(shape_env, Expression.of(shape_env.symbol("size", 7)))
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        batch = FakeTensor(TensorSpec((size, 3, 4), (12, 4, 1), torch.float32, HOST))
        weight = FakeTensor(TensorSpec((4, 5), (5, 1), torch.float32, HOST))
        try:
            torch.matmul(batch, weight)
        except RuntimeError:  # unknown for symbols
            return True
    return any(fact.relation == "==" for fact in shape_env.guards)


# Complex numbers.


def _complex(real: Any, imag: Any) -> Any:
    parts = torch.broadcast_tensors(real, imag)  # type: ignore[no-untyped-call]
    return torch.view_as_complex(torch.stack(parts, -1))


def _polar(abs: Any, angle: Any) -> Any:
    return _complex(abs * angle.cos(), abs * angle.sin())


# Cells of recurrent networks. Whole layers are in `recurrent_on_host`.


def _gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    of_input, of_state = _applied(input, w_ih, b_ih), _applied(hx, w_hh, b_hh)
    (i_reset, i_update, i_new), (h_reset, h_update, h_new) = of_input.chunk(3, -1), of_state.chunk(3, -1)
    reset, update = torch.sigmoid(h_reset + i_reset), torch.sigmoid(h_update + i_update)
    new = torch.tanh(i_new + h_new * reset)
    return (hx - new) * update + new


def _lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    hidden, cell = hx
    take, forget, new, show = (_applied(hidden, w_hh, b_hh) + _applied(input, w_ih, b_ih)).chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cell), cell


def _methods(**spelled: Spelled) -> dict[Any, Spelled]:
    """By the names of functions of `torch` that are methods too."""
    owners = (torch, BASE)
    return {getattr(owner, name): rule for name, rule in spelled.items() for owner in owners if hasattr(owner, name)}


SPELLED: dict[Any, Spelled] = {
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch.fft.fftfreq: _frequencies,
    torch.fft.rfftfreq: _real_frequencies,
    torch.hann_window: _window(0.5),
    torch.hamming_window: _window(0.54),
    torch.block_diag: _block_diag,
    torch.bilinear: _bilinear,
    F.bilinear: _bilinear,
    operator.matmul: _matmul,
    BASE.__matmul__: _matmul,
    F.linear: _linear,
    F.multi_head_attention_forward: _multi_head_attention,
    F.scaled_dot_product_attention: _attention,
    torch.complex: _complex,
    torch.polar: _polar,
    internal("_is_all_true"): _is_all_true,
    torch.channel_shuffle: _channel_shuffle,
    torch.pixel_shuffle: _pixel_shuffle,
    torch.pixel_unshuffle: _pixel_unshuffle,
    internal("_C._nn.pad_sequence"): _pad_sequence,
    F.avg_pool2d: _avg_pool2d,
    F.glu: _glu,
    F.prelu: _prelu,
    F.margin_ranking_loss: _loss(_ranking, 4),
    F.hinge_embedding_loss: _loss(_hinge, 3),
    F.cosine_embedding_loss: _loss(_cosine_embedding, 4),
    F.soft_margin_loss: _loss(_soft_margin, 2),
    F.cosine_similarity: _cosine_similarity,
    torch.cosine_similarity: _cosine_similarity,
    F.binary_cross_entropy_with_logits: _cross_entropy_with_logits,
    torch.gru_cell: _gru_cell,
    torch.lstm_cell: _lstm_cell,
    **_methods(
        kron=_kron, take_along_dim=_take_along_dim, roll=_roll, diag=_diag, trace=_trace, count_nonzero=_count_nonzero
    ),
    **_methods(prelu=_prelu, matmul=_matmul),
    **_methods(**{name: _over_all(getattr(torch, name)) for name in ("std", "var", "std_mean", "var_mean")}),
}

FOR_TENSORS: dict[Any, Spelled] = {
    torch.max_pool1d: _max_pool1d,
    F.max_pool1d: _max_pool1d,
    torch.rrelu: _rrelu,
    F.rrelu: _rrelu,
}

IN_PLACE: dict[Any, Spelled] = {
    **_methods(**{f"{name}_": _in_place(getattr(torch, name)) for name in ("clamp", "clamp_min", "clamp_max", "clip")}),
    **{each: _if_in_place(each) for each in (F.hardtanh, F.relu6, F.hardswish, F.hardsigmoid, F.threshold)},
}
"""What writes, for the tracer alone: capture takes it as it is."""
