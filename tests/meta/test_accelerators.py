"""Operators on devices beside the CPU, described where there is none: batch norm in 16 bits, losses."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from smelt.base.options import Options
from smelt.ir.program import Launch
from smelt.meta import fake_tensor
from smelt.meta.rules import lookup
from smelt.ops.decompose import norms
from tests.absent_device.ahead import compile_ahead, spec_like


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_batch_norm_is_kernels_on_a_gpu(dtype: torch.dtype) -> None:
    """Described with running statistics in float32, it was a call of the library's, which returned others."""
    model = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).to(dtype)
    found = compile_ahead(model, [spec_like((4, 8, 6, 6), dtype)], Options(target="sm_90"))
    assert all(isinstance(step, Launch) for program in found.programs for step in program.steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_statistics_of_the_batch_are_wide_and_running_ones_as_they_were(dtype: torch.dtype) -> None:
    op = torch.ops.aten._native_batch_norm_legit_functional.default
    channels = [_meta(8, dtype=dtype) for _ in range(4)]
    args = (_meta(4, 8, 6, 6, dtype=dtype), *channels, True, 0.1, 1e-5)
    found = lookup.answer(op, args, {}, torch.device("cuda", 0))
    assert [each.dtype for each in found] == [dtype, torch.float32, torch.float32, dtype, dtype]


def test_gradients_of_losses_have_the_shape_of_what_they_are_for() -> None:
    op = torch.ops.aten.multi_margin_loss_backward.default
    args = (_meta(), _meta(4, 5), torch.empty(4, dtype=torch.int64, device="meta"), 1, 1)
    assert lookup.answer(op, args, {}, torch.device("cuda", 0)).shape == (4, 5)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, -1e5])
@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e3])
def test_moments_of_one_pass_are_as_exact_as_those_of_two(offset: float, spread: float) -> None:
    x = (torch.randn(16, 5, 33, 7, dtype=torch.float64) * spread + offset).float()
    mean, variance = norms._one_pass_moments(x, [0, 2, 3])
    exact = torch.var_mean(x.double(), [0, 2, 3], correction=0, keepdim=True)
    torch.testing.assert_close(variance.double(), exact[0], rtol=1e-5, atol=0.0)
    torch.testing.assert_close(mean.double(), exact[1], rtol=1e-6, atol=1e-6 * spread)


def test_what_does_not_vary_has_no_variance() -> None:
    mean, variance = norms._one_pass_moments(torch.full((4, 3, 5), 0.1), [0, 2])
    assert torch.equal(mean.flatten(), torch.full((3,), 0.1))
    assert torch.equal(variance.flatten(), torch.zeros(3))


CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
HALF = torch.bfloat16


def _heads(tokens: int = 6, width: int = 8, dtype: torch.dtype = HALF) -> torch.Tensor:
    """Stored as tokens of heads, as models have them."""
    return _meta(2, tokens, 4, width, dtype=dtype).transpose(1, 2)


def _drawn() -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device="meta")


QUERY, KEY = _heads(), _heads(10)
IMAGE, KERNEL = _meta(2, 8, 9, 9, dtype=HALF), _meta(16, 8, 3, 3, dtype=HALF)
CONVOLVED = _meta(2, 16, 9, 9, dtype=HALF)
SETTING = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
CALLS: dict[str, tuple[object, tuple[object, ...], dict[str, object]]] = {
    "mm": (aten.mm.default, (_meta(4, 5), _meta(5, 6)), {}),
    "addmm": (aten.addmm.default, (_meta(6), _meta(4, 5), _meta(6, 5).t()), {}),
    "layer norm": (aten.native_layer_norm.default, (_meta(3, 4, 8), [8], _meta(8), None, 1e-5), {}),
    "rms norm": (aten._fused_rms_norm.default, (_meta(3, 4, 8), [8], _meta(8), None), {}),
    "rms norm of planes": (aten._fused_rms_norm.default, (_meta(8, 4, 3).transpose(0, 2), [4, 8], None, 1e-5), {}),
    "layer norm, backward": (
        aten.native_layer_norm_backward.default,
        (_meta(3, 8), _meta(3, 8), [8], _meta(3, 1), _meta(3, 1), _meta(8), _meta(8), [True, True, True]),
        {},
    ),
    "flash": (aten._scaled_dot_product_flash_attention.default, (QUERY, KEY, KEY, 0.1), {}),
    "cudnn": (aten._scaled_dot_product_cudnn_attention.default, (QUERY, KEY, KEY, None, True), {}),
    "efficient": (aten._scaled_dot_product_efficient_attention.default, (QUERY, KEY, KEY, None, True), {}),
    "efficient, no sums": (aten._scaled_dot_product_efficient_attention.default, (QUERY, KEY, KEY, None, False), {}),
    "cudnn, backward": (
        aten._scaled_dot_product_cudnn_attention_backward.default,
        (QUERY, QUERY, KEY, KEY, QUERY, _meta(2, 4, 6, 1), _drawn(), _drawn(), None, None, None, 6, 10, 0.0, False),
        {},
    ),
    "convolution": (aten.convolution.default, (IMAGE, KERNEL, None, *SETTING), {}),
    "convolution, backward": (
        aten.convolution_backward.default,
        (CONVOLVED, IMAGE, KERNEL, [16], *SETTING, [True, True, True]),
        {},
    ),
    "embedding": (aten.embedding.default, (_meta(9, 4), torch.empty(2, 3, dtype=torch.int64, device="meta")), {}),
    "pad": (aten.constant_pad_nd.default, (_meta(4, 5), [0, 1], -100.0), {}),
    "slice, backward": (aten.slice_backward.default, (_meta(2, 5), [4, 5], 0, 0, 2, 1), {}),
    "flip": (aten.flip.default, (_meta(4, 5), [0]), {}),
    "repeat": (aten.repeat.default, (_meta(4, 5), [2, 3]), {}),
}


def _layouts(specs: object) -> list[object]:
    parts = specs if isinstance(specs, tuple | list) else (specs,)
    return [(each.shape, each.stride, each.dtype) if hasattr(each, "shape") else each for each in parts]


@pytest.mark.parametrize("name", CALLS)
def test_rules_say_what_pytorch_says(name: str) -> None:
    op, args, kwargs = CALLS[name]
    found = lookup.answer(op, args, kwargs, CUDA)
    assert found is not NotImplemented
    assert _layouts(found) == _layouts(fake_tensor._ask_meta_kernel(op, args, kwargs))


def test_what_models_do_loads_none_of_pytorchs_compiler() -> None:
    """Its descriptions of operators are in Python, and the first of them imports it: seconds of a first call."""
    code = """
import sys, torch
from torch import nn
from smelt.base.options import Options
from tests.absent_device.ahead import compile_ahead, spec_like
block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
model = nn.Sequential(nn.Embedding(11, 32), block, nn.Linear(32, 5))
norm = nn.BatchNorm2d(8)
images = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 5))
for dtype in (torch.float32, torch.bfloat16):
    for each, spec in ((model, spec_like((2, 7), torch.int64)), (images, spec_like((2, 3, 4, 4), dtype))):
        compile_ahead(each.to(dtype), [spec], Options(target="sm_90"))
print([name for name in sys.modules if name in ("sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
