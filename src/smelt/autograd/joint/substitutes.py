"""Functions of PyTorch that mutate tensors undeclared, or choose kernels by them, and what is traced in their place.

    F.batch_norm(x, mean, var, training=True)  →  aten._native_batch_norm_legit, whose schema declares the mutation
    F.dropout(x)                               →  bernoulli, div, mul: the same random numbers, no mutation inside
    F.scaled_dot_product_attention(…, mask)    →  the same without a mask that says nothing (`known_masks`)

Functionalization removes the mutations that an operator's schema declares. An undeclared one would make a graph that
looks pure and is not; where no substitute catches it first, the recorder refuses it (`meta.effects`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from smelt.autograd.joint.bernoulli_order import bernoulli_contiguous
from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.autograd.joint.known_masks import without_known_mask
from smelt.autograd.joint.writes import WriteWatch
from smelt.base.torch_originals import BASE, meant
from smelt.device.host_library import on_host
from smelt.meta.symbolic_decomps import spell_out

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    from smelt.base.torch_originals import functional as F
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Without `div_`, for which functionalization would call a meta kernel that imports sympy, which takes a second."""
    if inplace or not training or not 0 < p < 1 or not on_host(input.device) or not input.numel():
        return F.dropout(input, p, training, inplace)
    noise = torch.bernoulli(torch.empty_like(input), 1 - p)
    return input * (noise / (1 - p))


def _batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    if training:
        F._verify_batch_size(input.size())  # type: ignore[attr-defined]
    if not training or running_mean is None or running_var is None or not input.numel():
        # Without cuDNN: its operator hides a workspace whose size only it knows, and cannot be fused.
        return torch.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, False)
    normed: torch.Tensor = _without_version_bump(aten._native_batch_norm_legit.default)(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )[0]
    return normed


def _without_version_bump(norm: Callable[..., Any]) -> Callable[..., Any]:
    """A normalization that does not bump the versions of its running statistics, as in eager: otherwise a backward
    after two forwards would fail."""

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(_NORM_ARGUMENTS, args, strict=False)), **kwargs}
        written = [arguments[name] for name in ("running_mean", "running_var")]
        with torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(written)):
            return norm(*args, **kwargs)

    return call


_NORM_ARGUMENTS = ("input", "weight", "bias", "running_mean", "running_var", "training")


def _parameters_first(norm: Callable[..., Any]) -> Callable[..., Any]:
    """The function of `torch` for one of `torch.nn.functional`: parameters come before running statistics."""

    def call(
        input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, *settings: Any, **options: Any
    ) -> Any:
        options.pop("cudnn_enabled", None)  # the last of four settings
        return norm(input, running_mean, running_var, weight, bias, *settings[:3], **options)

    return call


def _native_batch_norm(*args: Any, **kwargs: Any) -> Any:
    arguments = {**dict(zip(_NORM_ARGUMENTS, args, strict=False)), **kwargs}
    if not arguments["training"] or arguments["running_mean"] is None or arguments["running_var"] is None:
        return torch.native_batch_norm(*args, **kwargs)
    return _without_version_bump(aten._native_batch_norm_legit.default)(*args, **kwargs)


def _instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Batch norm of one batch with a channel per sample and channel, as PyTorch does it; running statistics are means
    over the samples."""
    if use_input_stats:
        F._verify_spatial_size(input.size())  # type: ignore[attr-defined]
    if not use_input_stats or running_mean is None or running_var is None:
        arguments = (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps)
        return torch.instance_norm(*arguments, False)  # without cuDNN, as above
    count, channels, *spatial = input.shape
    mean, var = running_mean.repeat(count), running_var.repeat(count)
    weight, bias = (None if each is None else each.repeat(count) for each in (weight, bias))
    flat = input.contiguous().view(1, count * channels, *spatial)
    normed = _batch_norm(flat, mean, var, weight, bias, True, momentum, eps)
    running_mean.copy_(mean.view(count, channels).mean(0))
    running_var.copy_(var.view(count, channels).mean(0))
    return normed.view(input.shape)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    attn_mask, is_causal = without_known_mask(query, key, attn_mask, is_causal)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _fill_diagonal(self: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
    """By a view that functionalization knows; PyTorch's own counts places in memory."""
    if self.dim() != 2 or wrap:
        return self.fill_diagonal_(fill_value, wrap)
    self.diagonal().fill_(fill_value)
    return self


def _undeclared_alias(name: str) -> Callable[..., Any]:
    """Results that alias their argument and are no views of it: a pure graph would return copies."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise CannotTrace(f"{name} returns aliases that its schema does not declare")

    return call


def _writing(name: str) -> Callable[..., Any]:
    """`x.add_(y)` as `x.copy_(x + y)` for counts, tensors of one number that have no gradient: functionalization asks a
    meta kernel of `add_` for what it asks none of `copy_`, and that one imports sympy, which takes a second."""
    method, compute = getattr(BASE, f"{name}_"), getattr(torch, name)

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in (self, *args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if self.dim() or torch._C._is_any_autocast_enabled() or any(each.requires_grad for each in tensors):
            return method(self, *args, **kwargs)
        result = compute(self, *args, **kwargs)
        fits = result.shape == self.shape and torch.can_cast(result.dtype, self.dtype)
        return self.copy_(result) if fits else method(self, *args, **kwargs)  # which says why not

    return call


_WRITING = ("add", "sub", "mul", "div", "masked_fill")
_UNDECLARED_ALIASES = ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")

SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    **{getattr(owner, name): _undeclared_alias(name) for owner in (torch, BASE) for name in _UNDECLARED_ALIASES},
    **{getattr(BASE, f"{name}_"): _writing(name) for name in _WRITING},
    F.dropout: _dropout,
    F.batch_norm: _batch_norm,
    torch.batch_norm: _parameters_first(_batch_norm),
    torch.native_batch_norm: _native_batch_norm,
    F.instance_norm: _instance_norm,
    torch.instance_norm: _parameters_first(_instance_norm),
    **{
        norm: _without_version_bump(norm)
        for norm in (aten._native_batch_norm_legit.default, aten._batch_norm_with_update.default)
    },
    F.scaled_dot_product_attention: _attention,
    BASE.fill_diagonal_: _fill_diagonal,
    torch.bernoulli: bernoulli_contiguous,
    BASE.bernoulli: bernoulli_contiguous,
}


class Substituting(TorchFunctionMode):
    """While this is on, calls of the functions above, and of `others`, are calls of their substitutes."""

    def __init__(self, others: Mapping[Any, Callable[..., Any]], watch: WriteWatch) -> None:
        super().__init__()
        self._watch = watch
        self._substitutes = {**others, **SUBSTITUTES} if others else SUBSTITUTES

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        func, kwargs = meant(func), kwargs or {}
        state_before = self._watch.before(func, args, kwargs)
        result = spell_out(func, args, kwargs, in_place=True)
        if result is NotImplemented:
            result = self._substitutes.get(func, func)(*args, **kwargs)
        self._watch.after(func, args, state_before, result)
        return result
