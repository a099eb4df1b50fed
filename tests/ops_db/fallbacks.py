"""What of PyTorch's operator database is left to PyTorch, and why: part of the reason → operators.

The sweep holds this list to what happens: an operator that does not stand here must be compiled, for every sample, and
one that does may be left to PyTorch for its reason only.
"""

import torch

# PyTorch 2.11 looks at the fractions that quantile is given, before it computes anything; 2.13 does not.
_READS_FRACTIONS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)

REASONS: dict[str, tuple[str, ...]] = {
    # What comes out, or whether anything does, depends on numbers that only running yields.
    "needs the data of a tensor": (
        "__getitem__",
        "allclose",
        "argwhere",
        "combinations",
        "corrcoef",
        "cov",
        "equal",
        "geqrf",
        "histogram",
        "histogramdd",
        "istft",
        "item",
        "linalg.lstsq",
        "masked_select",
        "narrow",
        "nn.functional.ctc_loss",
        "nn.functional.gaussian_nll_loss",
        "nonzero",
        "repeat_interleave",
        "tensor_split",
        "to_sparse",
        "unique",
        "unique_consecutive",
        *(("nanquantile", "quantile") if _READS_FRACTIONS else ()),
    ),
    "has no result that can be known without data": ("index_fill", "index_put"),  # in the backward
    "its data is not allocated yet": ("tensor_split",),
    "raises for some data": (  # singular values and Hermitian eigenvalues only of complex matrices
        "linalg.cond",
        "linalg.eig",
        "linalg.eigh",
        "linalg.eigvals",
        "linalg.eigvalsh",
        "linalg.norm",
        "linalg.svd",
        "linalg.svdvals",
        "norm",
        "svd",
    ),
    # Memory that a pure graph has no words for.
    "which is not dense": (
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "native_batch_norm",
        "nn.functional.batch_norm",
        "normal",
        "nn.functional.instance_norm",
        "uniform",
    ),
    "returns aliases that its schema does not declare": ("unsafe_chunk", "unsafe_split"),
    "takes a storage offset into memory": ("as_strided", "as_strided_copy", "as_strided_scatter"),
    "lazily conjugated": ("fft.hfft", "fft.hfft2", "fft.hfftn"),
    "changes a tensor's autograd metadata": ("resize_", "resize_as_"),
    "is an unsupported tensor subclass or layout": ("sparse.mm", "sparse.sampled_addmm", "to_sparse"),
    "Tensor must have a last dimension": ("view_as_complex",),  # eager raises as well
    # Python code of PyTorch, or of its tests, that capture does not follow.
    "which only Python can run": (
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
        "linalg.lstsq",
        "linalg.pinv",
        "masked.amax",
        "masked.amin",
        "masked.argmax",
        "masked.argmin",
        "masked.cumprod",
        "masked.cumsum",
        "masked.log_softmax",
        "masked.logaddexp",
        "masked.logsumexp",
        "masked.mean",
        "masked.median",
        "masked.norm",
        "masked.normalize",
        "masked.prod",
        "masked.softmax",
        "masked.softmin",
        "masked.std",
        "masked.sum",
        "masked.var",
        "nn.functional.linear_cross_entropy",
        "pca_lowrank",
        "svd_lowrank",
    ),
    "unsupported type of key or value": (
        "nn.functional.linear_cross_entropy",
        "nn.functional.triplet_margin_with_distance_loss",
    ),
    "mutation that cannot be captured": ("nn.functional.linear_cross_entropy",),
    "a torch.autograd.Function that cannot be captured as a whole": ("nn.functional.linear_cross_entropy",),
}


def is_listed(operator: str, reason: str) -> bool:
    """Whether it is known that `operator` is left to PyTorch for this reason."""
    return any(part in reason and operator in operators for part, operators in REASONS.items())
