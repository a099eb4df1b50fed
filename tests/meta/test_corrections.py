"""Rules for operators that PyTorch describes wrongly or not at all, against what its CPU code yields."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules import describe
from smelt.meta.rules.corrections import RULES
from smelt.meta.rules.fourier import _asked

aten = torch.ops.aten
SHAPES = [(5, 3), (3, 5), (4, 4), (2, 5, 3), (2, 3, 5), (2, 3, 4, 4), (0, 3), (3, 0), (2, 0, 3), (0, 4, 3), (1, 1)]


def assert_described(op: Any, *args: Any, **kwargs: Any) -> None:
    said, real = describe(op, args, kwargs, torch.device("cpu")), op(*args, **kwargs)
    pairs = zip(said, real, strict=True) if isinstance(real, tuple) else [(said, real)]
    for spec, tensor in pairs:
        assert isinstance(spec, UnplacedSpec)
        assert (spec.shape, spec.stride, spec.dtype) == (tuple(tensor.shape), tensor.stride(), tensor.dtype)


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_singular_values(dtype: torch.dtype, full: bool, vectors: bool) -> None:
    for shape in SHAPES:
        for value in (torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype).mT.contiguous().mT):
            assert_described(aten._linalg_svd.default, value, full, vectors)


def test_eigenvectors() -> None:
    for dtype in (torch.float32, torch.float64):
        for shape in ((4, 4), (2, 3, 3), (1, 1), (0, 3, 3)):
            for value in (torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype).mT):
                assert_described(aten.linalg_eig.default, value)


def test_what_is_drawn_around_means() -> None:
    values = torch.rand(4, 3), torch.rand(3, 4).t(), torch.rand(4, 6)[:, ::2], torch.rand(3).expand(4, 3)
    for mean, std in itertools.product(values, repeat=2):
        assert_described(aten.normal.Tensor_Tensor, mean, std)


def test_backward_of_losses_and_pools() -> None:
    torch.manual_seed(0)
    for value in (torch.randn(4, 5), torch.randn(5, 4).t()):
        few, many = torch.randint(0, 5, (4,)), torch.randint(0, 5, (4, 5))
        assert_described(aten.multi_margin_loss_backward.default, torch.ones(()), value, few, 1, 1.0, None, 1)
        _, is_target = aten.multilabel_margin_loss_forward(value, many, 1)
        assert_described(aten.multilabel_margin_loss_backward.default, torch.ones(()), value, many, 1, is_target)
    for value in (torch.randn(2, 3, 6, 6, 6), torch.randn(2, 3, 6, 6, 6).transpose(2, 4)):
        pooled, indices = aten.fractional_max_pool3d(value, [2, 2, 2], [3, 3, 3], torch.rand(2, 3, 3))
        gradient = torch.ones_like(pooled)
        assert_described(
            aten.fractional_max_pool3d_backward.default, gradient, value, [2, 2, 2], [3, 3, 3], indices
        )
    for value in (torch.randn(6, 2, 5), torch.randn(6, 5, 2).transpose(1, 2)):
        logs, targets = F.log_softmax(value, -1), torch.randint(1, 5, (2, 3))
        loss, alpha = aten._ctc_loss(logs, targets, [6, 6], [3, 3], 0, False)
        gradient = torch.ones(2)
        assert_described(
            aten._ctc_loss_backward.default, gradient, logs, targets, [6, 6], [3, 3], loss, alpha, 0, False
        )
        lengths = torch.tensor([6, 6]), torch.tensor([3, 3])
        assert_described(
            aten._ctc_loss_backward.Tensor, gradient, logs, targets, *lengths, loss, alpha, 0, False
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_bags_of_rows(dtype: torch.dtype, kind: torch.dtype) -> None:
    indices, ends = torch.tensor([1, 2, 3, 4], dtype=kind), torch.tensor([0, 2, 4], dtype=kind)
    weights = torch.ones(4, dtype=dtype), torch.ones(8, dtype=dtype)[::2]
    tables = torch.randn(6, 3, dtype=dtype), torch.randn(3, 6, dtype=dtype).t(), torch.randn(6, 1, dtype=dtype)
    for table, mode, last, padding in itertools.product(tables, (0, 1, 2), (False, True), (-1, 2)):
        for weight in (None, *weights) if mode == 0 else (None,):
            args = (table, indices, ends if last else ends[:2], False, mode, False, weight, last, padding)
            assert_described(aten._embedding_bag.default, *args)
            assert_described(aten._embedding_bag_forward_only.default, *args)


def test_places_of_what_is_not_zero() -> None:
    for value in (torch.randn(4), torch.randn(4, 5), torch.randn(2, 3, 4)):
        for size in (1, 3, 50):
            assert_described(aten.nonzero_static.default, value, size=size)


def test_what_is_among_others() -> None:
    for value in (torch.randn(4, 3), torch.randn(3, 4).t(), torch.randn(2, 3, 4).transpose(0, 1).to(torch.float16)):
        for among in (torch.randn(3), torch.randn(300).view(3, 100)):
            assert_described(aten.isin.Tensor_Tensor, value, among.to(value.dtype), invert=True)
            assert_described(aten.isin.Scalar_Tensor, 1.0, among)
        assert_described(aten.isin.Tensor_Scalar, value, 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_distances_of_dtypes_that_their_kernel_does_not_know(dtype: torch.dtype) -> None:
    for rows, columns, p, mode in itertools.product((1, 25, 26), (1, 26), (1.0, 2.0), (None, 0, 1, 2)):
        for width in (0, 3):
            args = torch.ones(rows, width, dtype=dtype), torch.ones(columns, width, dtype=dtype), p, mode
            try:
                aten._cdist_forward.default(*args)
            except NotImplementedError as refusal:
                with pytest.raises(NotImplementedError) as raised:
                    describe(aten._cdist_forward.default, args, {}, torch.device("cpu"))
                assert str(raised.value) == str(refusal)
            else:  # PyTorch is asked for the rest
                assert describe(aten._cdist_forward.default, args, {}, torch.device("cpu")) is NotImplemented


def test_every_rule_is_tried_here() -> None:
    assert len(RULES) == 18


def test_transforms_can_be_asked_themselves() -> None:
    """As it is done where MKL is, whose order of dimensions PyTorch's description does not always give."""
    for value in (torch.randn(5, 6, 7), torch.randn(7, 6, 5).transpose(0, 2)):
        for dims in ([0, 1, 2], [0, 2], [1]):
            said, real = _asked(aten._fft_r2c.default)(value, dims, 0, True), aten._fft_r2c(value, dims, 0, True)
            assert (said.shape, said.stride, said.dtype) == (tuple(real.shape), real.stride(), real.dtype)


def test_values_rounded_as_if_quantized() -> None:
    scale, zero, on = torch.full((1,), 0.5), torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int64)
    for value in (torch.randn(4, 3), torch.randn(3, 4).t(), torch.randn(4, 6)[:, ::2], torch.randn(2, 3, 4, 4)):
        assert_described(aten.fake_quantize_per_tensor_affine_cachemask.default, value, 0.5, 0, -8, 7)
        tensors = (value, scale, zero, on, -8, 7)
        assert_described(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, *tensors)
        each = (value, scale.expand(3).contiguous(), zero.expand(3).contiguous(), 1, -8, 7)
        assert_described(aten.fake_quantize_per_channel_affine_cachemask.default, *each)
