"""Where results are: PyTorch's rules for operands on several devices, on fake tensors of absent devices."""

import dataclasses
from typing import Any

import pytest
import torch

from smelt.ir.tensorspec import TensorSpec
from smelt.meta.devices import result_device, with_index
from smelt.meta.fake_tensor import FakeMode, FakeTensor
from smelt.symbolic.shapes import contiguous_stride

aten = torch.ops.aten
CPU, CUDA, OTHER = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


def fake(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> FakeTensor:
    return FakeTensor(TensorSpec(shape, contiguous_stride(shape), dtype, device))


def index(device: torch.device, *shape: int) -> FakeTensor:
    return fake(device, *shape, dtype=torch.int64)


def device_of(op: Any, *args: Any, **kwargs: Any) -> torch.device:
    with FakeMode():
        result = op(*args, **kwargs)
    found: torch.device = (result[0] if isinstance(result, tuple | list) else result).device
    return found


X, N, S, D = fake(CUDA, 4, 8), fake(CPU, 4, 8), fake(CPU), fake(CUDA)

TOGETHER = {
    "one device": (CUDA, aten.add.Tensor, (X, X)),
    "a reduction": (CUDA, aten.sum.dim_IntList, (X, [1])),
    "a scalar of the CPU": (CUDA, aten.mul.Tensor, (X, S)),
    "a scalar of the CPU first": (CUDA, aten.mul.Tensor, (S, X)),
    "two scalars, the CPU's first": (CUDA, aten.add.Tensor, (S, D)),
    "three operands": (CUDA, aten.addcmul.default, (X, X, S)),
    "the other of two": (CUDA, aten.logical_and.default, (X, S)),
    "where": (CUDA, aten.where.self, (fake(CUDA, 4, 8, dtype=torch.bool), S, X)),
    "lerp": (CUDA, aten.lerp.Tensor, (X, X, S)),
    "masked fill": (CUDA, aten.masked_fill.Tensor, (X, fake(CUDA, 4, 8, dtype=torch.bool), S)),
    "reversed": (CUDA, aten.rsub.Tensor, (S, X)),
    "whole quotients": (CUDA, aten.floor_divide.default, (X, S)),
    "filled": (CUDA, aten.fill.Tensor, (X, S)),
    "filled at indices": (CUDA, aten.index_fill.int_Tensor, (X, 0, index(CUDA, 2), S)),
    "written": (CUDA, aten.add_.Tensor, (fake(CUDA, 4), S)),
    "indices of the CPU": (CUDA, aten.index.Tensor, (X, [index(CPU, 3)])),
    "indices of the device": (CUDA, aten.index.Tensor, (X, [index(CUDA, 3)])),
    "put by indices of the CPU": (CUDA, aten.index_put.default, (X, [index(CPU, 3)], fake(CUDA, 3, 8))),
    "put a scalar of the CPU": (CUDA, aten.index_put.default, (X, [index(CUDA, 3)], S)),
    "copy to": (CUDA, aten.copy.default, (X, N)),
    "copy from": (CPU, aten.copy.default, (N, X)),
    "to a device": (CUDA, aten._to_copy.default, (N,), {"device": CUDA}),
    "like, elsewhere": (CPU, aten.zeros_like.default, (X,), {"device": CPU}),
    "new": (CUDA, aten.new_zeros.default, (X, [3])),
    "a factory": (CUDA, aten.zeros.default, ([3],), {"device": CUDA}),
    "a factory without a number": (CUDA, aten.zeros.default, ([3],), {"device": torch.device("cuda")}),
    "a factory without a device": (CPU, aten.zeros.default, ([3],)),
    "no rule": (CUDA, aten.cumprod.default, (X, 0)),
    "a layer norm": (CUDA, aten.native_layer_norm.default, (X, [8], None, None, 1e-5)),
}

APART = {
    "two devices": (aten.add.Tensor, (X, N)),
    "two of a kind": (aten.add.Tensor, (X, fake(OTHER, 4, 8))),
    "a scalar of another device": (aten.add.Tensor, (N, D)),
    "a product": (aten.mm.default, (X, fake(CPU, 8, 2))),
    "a vector of one": (aten.add.Tensor, (X, fake(CPU, 1))),
    "concatenated": (aten.cat.default, ([X, N],)),
    "indices of another device": (aten.index.Tensor, (N, [index(CUDA, 3)])),
    "gather": (aten.gather.default, (X, 0, index(CPU, 4, 8))),
    "index_select": (aten.index_select.default, (X, 0, index(CPU, 3))),
    "embedding": (aten.embedding.default, (X, index(CPU, 3))),
    "scatter": (aten.scatter.src, (X, 0, index(CPU, 4, 8), X)),
    "put values of the CPU": (aten.index_put.default, (X, [index(CUDA, 3)], fake(CPU, 3, 8))),
    "a mask of the CPU": (aten.masked_fill.Scalar, (X, fake(CPU, 4, 8, dtype=torch.bool), 1.0)),
    "written on the CPU": (aten.add_.Tensor, (S, D)),
    "a weight of the CPU": (aten.native_layer_norm.default, (X, [8], fake(CPU, 8), None, 1e-5)),
    "a scalar as the first factor": (aten.addcmul.default, (X, S, X)),
    "a scalar as a divisor": (aten.addcdiv.default, (X, X, S)),
    "the first of two": (aten.logical_and.default, (S, X)),
    "a scalar to be masked": (aten.masked_fill.Scalar, (S, fake(CUDA, 4, 8, dtype=torch.bool), 1.0)),
    "a scalar as a limit": (aten.clamp.Tensor, (X, None, S)),
    "a scalar as the least": (aten.clamp_min.Tensor, (X, S)),
    "a scalar as the most, written": (aten.clamp_max_.Tensor, (X, S)),
    "a scalar in a sum of exponentials": (aten.logaddexp.default, (X, S)),
    "a scalar to go towards": (aten.nextafter.default, (X, S)),
    "a scalar to divide": (aten.gcd.default, (index(CUDA, 3), index(CPU))),
    "a scalar, not element by element": (aten.dot.default, (fake(CUDA, 4), fake(CPU, 4))),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_results_are_where_pytorch_has_them(case: str) -> None:
    expected, op, args, *named = TOGETHER[case]
    assert device_of(op, *args, **(named[0] if named else {})) == expected


@pytest.mark.parametrize("case", APART)
def test_devices_that_do_not_go_together_raise(case: str) -> None:
    op, args = APART[case]
    with pytest.raises(RuntimeError, match="on the same device"):
        device_of(op, *args)


def test_lists_of_tensors_are_computed_one_by_one() -> None:
    """Parameters may be on several devices, each with its gradient; the steps of an optimizer are on the CPU."""
    with FakeMode():
        made = torch._foreach_add([X, N], [X, N])
        assert [each.device for each in made] == [CUDA, CPU]
        made = torch._foreach_mul([N, X], S)
        assert [each.device for each in made] == [CPU, CUDA]
        with pytest.raises(RuntimeError, match="on the same device"):
            torch._foreach_add([X, N], [N, X])
    assert result_device(aten._foreach_copy.default, ([X, N], [N, X]), {}) == CUDA
    assert result_device(aten._foreach_addcdiv.Tensor, ([X, X], [X, X], [X, X], fake(CPU, 2)), {}) == CUDA
    assert result_device(aten._pack_padded_sequence.default, (X, index(CPU, 8), False), {}) == CUDA


def test_a_device_without_a_number_is_one_with() -> None:
    assert with_index(torch.device("cuda")).index is not None
    assert with_index(torch.device("cuda", 3)).index == 3
    assert with_index(CPU) == CPU and with_index(torch.device("meta")) == torch.device("meta")


@torch.library.custom_op("smelt_tests::onto_host", mutates_args=())
def onto_host(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().clone()


@onto_host.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, device="cpu")


def test_a_custom_operator_says_where_its_result_is() -> None:
    assert device_of(torch.ops.smelt_tests.onto_host.default, X) == CPU


def test_a_custom_operator_with_operands_on_two_devices_is_left_to_the_program() -> None:
    with torch.library._scoped_library("smelt_tests", "FRAGMENT") as library:
        library.define("both(Tensor a, Tensor b) -> Tensor")
        library.impl("both", lambda a, b: torch.empty_like(a), "Meta")
        with pytest.raises(RuntimeError, match="several devices"):
            result_device(torch.ops.smelt_tests.both.default, (X, N), {})


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_transposed_convolutions_of_gpus_follow_the_image(last: bool, groups: int) -> None:
    """As cuDNN does; PyTorch's rule gives the shape."""
    memory_format = torch.channels_last if last else torch.contiguous_format
    real = torch.empty(2, 4, 7, 6).contiguous(memory_format=memory_format), torch.empty(4, 3, 3, 2)
    options = ([2, 3], [1, 0], [1, 2], True, [1, 2], groups)
    x, weight = (FakeTensor(dataclasses.replace(TensorSpec.of(each), device=CUDA)) for each in real)
    with FakeMode():
        result = aten.convolution.default(x, weight, fake(CUDA, 3 * groups), *options)
        gradients = aten.convolution_backward.default(result, x, weight, [3 * groups], *options, [True] * 3)
    expected = aten.convolution.default(*(each.to("meta") for each in real), None, *options)
    assert result.shape == expected.shape
    assert result.is_contiguous(memory_format=memory_format)
    assert [each.shape for each in gradients] == [x.shape, weight.shape, (3 * groups,)]
    assert gradients[0].is_contiguous(memory_format=memory_format)
