"""Records of operators that stay calls into ATen: why, and which of them can write into memory given to them.

    mm(a, b)         →  mm.out(a, b, out=planned buffer)
    bernoulli(x, p)  →  bernoulli_(planned buffer, p)       x only lends its shape: nothing waits for it

Only variants that compute straight into `out` are listed; the generated ones, which compute and then copy, are not. An
operator without a record is left to ATen too; `docs/operators.md` shows all that have one.
"""

import torch
from torch import fx

from smelt.ir.tensorspec import tensor_spec
from smelt.ops.record import LIBRARY_COST, Demand, LibraryCall, OpRecord
from smelt.ops.registry import register

aten = torch.ops.aten

_OUT = {
    aten.mm.default: aten.mm.out,
    aten.bmm.default: aten.bmm.out,
    aten.addmm.default: aten.addmm.out,
    aten.baddbmm.default: aten.baddbmm.out,
    aten.mv.default: aten.mv.out,
    aten.addmv.default: aten.addmv.out,
    aten._softmax.default: aten._softmax.out,
    aten._log_softmax.default: aten._log_softmax.out,
    aten.im2col.default: aten.im2col.out,
    aten.col2im.default: aten.col2im.out,  # else its result keeps memory as long as its input
}

# Variants that write all of their first argument and read nothing of it.
_FILLS = {aten.bernoulli.p: aten.bernoulli_.float}

# What speaks against a kernel → operators, by name and overload.
_WHY = {
    "multiplies matrices, for which the library is tuned to the machine": (
        "mm bmm addmm baddbmm mv addmv convolution convolution_backward _cdist_forward _pdist_forward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    "raises for some values, which a kernel cannot": "_embedding_bag nll_loss_forward nll_loss2d_forward take",
    "scatters to indices that depend on data, several to one": (
        "put nll_loss_backward nll_loss2d_backward"
    ),
    "reads a window for each element": (
        "avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward adaptive_avg_pool1d _adaptive_avg_pool2d "
        "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d max_pool2d_with_indices max_pool3d_with_indices col2im "
        "im2col grid_sampler_2d upsample_bilinear2d upsample_bilinear2d.vec upsample_nearest2d upsample_nearest2d.vec"
    ),
    "reads elements in the order of a mask, and skips the others faster than a kernel could": "masked_scatter",
    "sorts": "sort topk kthvalue median median.dim",
    "draws random numbers, which have to be PyTorch's own": (
        "rand randn randint randint.low randperm bernoulli bernoulli.p normal_functional"
    ),
    "is a special function, which has a kernel only without libtorch": "erfc erfinv lgamma digamma",
    "transforms whole rows": "_fft_c2c _fft_c2r _fft_r2c",
    "has a result whose shape or value depends on data": "nonzero masked_select _local_scalar_dense",
    "only allocates memory": "empty.memory_format empty_strided",
    "stays whole where it cannot be decomposed": "_softmax _log_softmax",
}


def _is_class(node: fx.Node) -> tuple[Demand, ...]:
    """Of a loss by classes: each target is one of them, or the one that is ignored."""
    x, target, _, _, ignored = node.args
    assert isinstance(x, fx.Node) and isinstance(target, fx.Node) and isinstance(ignored, int)
    shape = tensor_spec(x).shape
    return (Demand(target, shape[min(1, len(shape) - 1)], besides=ignored),)


_DEMANDS = {
    aten.nll_loss_forward.default: _is_class,
    aten.nll_loss2d_forward.default: _is_class,
}


def _operator(name: str) -> torch._ops.OpOverload:
    base, _, overload = name.partition(".")
    operator: torch._ops.OpOverload = getattr(getattr(aten, base), overload or "default")
    return operator


for _why, _names in _WHY.items():
    for _op in map(_operator, _names.split()):
        _out = _OUT.get(_op)
        _call = LibraryCall(_out, ("out",) if _out is not None else (), _why)
        if _op in _FILLS:
            _call = LibraryCall(_FILLS[_op], ("self",), _why, template=True)
        register(OpRecord(_op, _call, LIBRARY_COST, demands=_DEMANDS.get(_op)))
