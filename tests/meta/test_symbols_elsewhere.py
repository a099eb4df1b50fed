"""What operators return on a GPU, in symbols: no size is relied on, and at other sizes it is what they return there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.ir.tensorspec import TensorSpec
from smelt.meta import symbolic_decomps
from smelt.meta.fake_tensor import FakeMode, FakeTensor
from smelt.symbolic.expressions import Expression, ShapeEnv
from smelt.symbolic.shapes import contiguous_stride
from smelt.symbolic.symnode import as_number, meaning

aten = torch.ops.aten
INT, HALF = torch.int64, torch.bfloat16
CUDA = torch.device("cuda", 0)

# Calls on fake tensors: `g` makes one of a shape and dtype, `n` and `m` are sizes.
CALLS: dict[str, Callable[..., Any]] = {
    "mm": lambda g, n, m: aten.mm(g(n, 128), g(128, 64)),
    "addmm": lambda g, n, m: aten.addmm(g(64), g(n, 128), g(128, 64)),
    "bmm": lambda g, n, m: aten.bmm(g(4, n, 8), g(4, 8, n)),
    "baddbmm": lambda g, n, m: aten.baddbmm(g(4, n, n), g(4, n, 8), g(4, 8, n)),
    "layer_norm": lambda g, n, m: aten.native_layer_norm(g(n, 128), [128], g(128), g(128), 1e-5),
    "layer_norm backward": lambda g, n, m: aten.native_layer_norm_backward(
        g(n, 128), g(n, 128), [128], g(n, 1), g(n, 1), g(128), g(128), [True] * 3
    ),
    "rms norm": lambda g, n, m: aten._fused_rms_norm(g(n, 128), [128], g(128), None),
    "softmax": lambda g, n, m: aten._softmax(g(n, 128), -1, False),
    "softmax backward": lambda g, n, m: aten._softmax_backward_data(g(n, 128), g(n, 128), -1, g().dtype),
    "log_softmax": lambda g, n, m: aten._log_softmax(g(n, 128), -1, False),
    "cumsum": lambda g, n, m: aten.cumsum(g(n, 128), -1),
    "flip": lambda g, n, m: aten.flip(g(n, 128), [-1]),
    "gelu": lambda g, n, m: aten.gelu(g(n, 128)),
    "gelu backward": lambda g, n, m: aten.gelu_backward(g(n, 128), g(n, 128)),
    "embedding": lambda g, n, m: aten.embedding(g(100, 16), g(n, m, dtype=INT)),
    "embedding backward": lambda g, n, m: aten.embedding_dense_backward(
        g(n, m, 16), g(n, m, dtype=INT), 100, -1, False
    ),
    "nll_loss": lambda g, n, m: aten.nll_loss_forward(g(n, 10), g(n, dtype=INT), None, 1, -100),
    "nll_loss_backward": lambda g, n, m: aten.nll_loss_backward(g(), g(n, 10), g(n, dtype=INT), None, 1, -100, g()),
    "convolution": lambda g, n, m: aten.convolution(
        g(n, 3, m, 32), g(8, 3, 3, 3), g(8), [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    ),
    "convolution_backward": lambda g, n, m: aten.convolution_backward(
        g(n, 8, m, 32), g(n, 3, m, 32), g(8, 3, 3, 3), [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
    ),
    "batch norm": lambda g, n, m: aten._native_batch_norm_legit_functional(
        g(n, 3, m, 8), g(3), g(3), g(3), g(3), True, 0.1, 1e-5
    ),
    "batch norm backward": lambda g, n, m: aten.native_batch_norm_backward(
        g(n, 3, m, 8), g(n, 3, m, 8), g(3), g(3), g(3), g(3), g(3), True, 1e-5, [True] * 3
    ),
    "batch norm by cuDNN": lambda g, n, m: aten.cudnn_batch_norm(
        g(n, 3, m, 8), g(3), g(3), g(3), g(3), True, 0.1, 1e-5
    ),
    "batch norm by cuDNN, evaluation": lambda g, n, m: aten.cudnn_batch_norm(
        g(n, 3, m, 8), g(3), g(3), g(3), g(3), False, 0.1, 1e-5
    ),
    "batch norm by cuDNN, backward": lambda g, n, m: aten.cudnn_batch_norm_backward(
        g(n, 3, m, 8), g(n, 3, m, 8), g(3), g(3), g(3), g(3), g(3), 1e-5, g(0, dtype=torch.uint8)
    ),
    "group norm": lambda g, n, m: aten.native_group_norm(g(n, 4, m, 8), g(4), g(4), n, 4, m * 8, 2, 1e-5),
    "group norm backward": lambda g, n, m: aten.native_group_norm_backward(
        g(n, 4, m, 8), g(n, 4, m, 8), g(n, 2), g(n, 2), g(4), n, 4, m * 8, 2, [True] * 3
    ),
    "maxpool": lambda g, n, m: aten.max_pool2d_with_indices(g(n, 3, m, 8), [2, 2]),
    "avgpool": lambda g, n, m: aten.avg_pool2d(g(n, 3, m, 8), [2, 2]),
    "adaptive": lambda g, n, m: aten._adaptive_avg_pool2d(g(n, 3, m, 8), [1, 1]),
    "mean": lambda g, n, m: aten.mean(g(n, 3, m, 8), [2, 3]),
    "index": lambda g, n, m: aten.index(g(n, 8), [g(m, dtype=INT)]),
    "index_put": lambda g, n, m: aten.index_put(g(n, 8), [g(m, dtype=INT)], g(m, 8)),
    "gather": lambda g, n, m: aten.gather(g(n, 8), 1, g(n, 3, dtype=INT)),
    "scatter": lambda g, n, m: aten.scatter_add(g(n, 8), 1, g(n, 3, dtype=INT), g(n, 3)),
    "cat": lambda g, n, m: aten.cat([g(n, 8), g(m, 8)]),
    "topk": lambda g, n, m: aten.topk(g(n, 8), 2),
    "sort": lambda g, n, m: aten.sort(g(n, 8)),
    "argmax": lambda g, n, m: aten.argmax(g(n, 8), 1),
    "index_select": lambda g, n, m: aten.index_select(g(n, 8), 0, g(m, dtype=INT)),
    "slice_scatter": lambda g, n, m: aten.slice_scatter(g(n, 8), g(n, 4), 1, 0, 4),
    "select_scatter": lambda g, n, m: aten.select_scatter(g(n, 8), g(n), 1, 0),
    "pad": lambda g, n, m: aten.constant_pad_nd(g(n, 8), [1, 1]),
    "dropout": lambda g, n, m: aten.native_dropout(g(n, 8), 0.1, True),
    "dropout backward": lambda g, n, m: aten.native_dropout_backward(g(n, 8), g(n, 8, dtype=torch.bool), 1.1),
    "var_mean": lambda g, n, m: aten.var_mean(g(n, 8), [1], correction=0),
    "flash attention": lambda g, n, m: aten._scaled_dot_product_flash_attention(
        g(2, 4, n, 64, dtype=HALF), g(2, 4, n, 64, dtype=HALF), g(2, 4, n, 64, dtype=HALF)
    ),
    "efficient attention": lambda g, n, m: aten._scaled_dot_product_efficient_attention(
        g(2, 4, n, 64), g(2, 4, n, 64), g(2, 4, n, 64), None, True
    ),
    "efficient attention backward": lambda g, n, m: aten._scaled_dot_product_efficient_attention_backward(
        g(2, 4, n, 64),
        g(2, 4, n, 64),
        g(2, 4, n, 64),
        g(2, 4, n, 64),
        None,
        g(2, 4, n, 64),
        g(2, 4, 96),
        g(dtype=INT),
        g(dtype=INT),
        0.1,
        [True, True, True, False],
    ),
    "flash attention backward": lambda g, n, m: aten._scaled_dot_product_flash_attention_backward(
        *[g(2, 4, n, 64, dtype=HALF) for _ in range(5)],
        g(2, 4, n),
        None,
        None,
        n,
        n,
        0.1,
        False,
        g(dtype=INT),
        g(dtype=INT),
    ),
    "cudnn": lambda g, n, m: aten._scaled_dot_product_cudnn_attention(
        *[g(2, 4, n, 64, dtype=HALF) for _ in range(3)], None, True
    ),
    "upsample": lambda g, n, m: aten.upsample_bilinear2d(g(n, 3, m, 8), [16, 16], False),
    "tril": lambda g, n, m: aten.tril(g(n, n)),
    "repeat": lambda g, n, m: aten.repeat(g(n, 8), [2, 1]),
    "sum": lambda g, n, m: aten.sum(g(n, 8), [0], True),
    "scatter of a number": lambda g, n, m: aten.scatter(g(n, 8, dtype=INT), 1, g(n, 1, dtype=INT), 1),
    "rand": lambda g, n, m: aten.rand_like(g(n, 8)),
    "bernoulli": lambda g, n, m: aten.bernoulli(g(n, 8)),
    "norm": lambda g, n, m: aten.linalg_vector_norm(g(n, 8)),
    "where": lambda g, n, m: aten.where(g(n, 8, dtype=torch.bool), g(n, 8), g(n, 8)),
    "masked_fill": lambda g, n, m: aten.masked_fill(g(n, 8), g(n, 8, dtype=torch.bool), 1.0),
    "masked_scatter": lambda g, n, m: aten.masked_scatter(g(n, 8), g(n, 1, dtype=torch.bool), g(m, 8)),
    "cumprod": lambda g, n, m: aten.cumprod(g(n, 8), 0),
    "logcumsumexp": lambda g, n, m: aten.logcumsumexp(g(n, 8), 0),
    "roll": lambda g, n, m: aten.roll(g(n, 8), [1], [0]),
    "mse_loss": lambda g, n, m: aten.mse_loss(g(n, 8), g(n, 8)),
    "binary_cross_entropy": lambda g, n, m: aten.binary_cross_entropy(g(n, 8), g(n, 8)),
    "unfold_backward": lambda g, n, m: aten.unfold_backward(g(n, 4, 3), [n, 8], 1, 3, 1),
}


def fake(*shape: Any, dtype: torch.dtype = torch.float32) -> FakeTensor:
    return FakeTensor(TensorSpec(shape, contiguous_stride(shape), dtype, CUDA))


def narrow(*shape: Any, dtype: torch.dtype = torch.float32) -> FakeTensor:
    return fake(*shape, dtype=HALF if dtype is torch.float32 else dtype)


def described(results: Any, at: Callable[[Any], Any]) -> list[Any]:
    listed = results if isinstance(results, tuple | list) else [results]
    return [
        (tuple(map(at, each.shape)), tuple(map(at, each.stride())), at(each.storage_offset()), each.dtype, each.device)
        for each in listed
        if isinstance(each, torch.Tensor)
    ]


@pytest.mark.parametrize("make", [fake, narrow], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_no_size_is_relied_on(name: str, make: Callable[..., FakeTensor]) -> None:
    shape_env = ShapeEnv()
    symbols = [shape_env.symbol(text, size) for text, size in (("s0", 65), ("s1", 37))]
    with FakeMode():
        found = CALLS[name](make, *(as_number(shape_env, Expression.of(symbol)) for symbol in symbols))
    assert not [str(fact) for fact in shape_env.guards if fact.relation == "=="]
    for sizes in ((65, 37), (40, 28), (96, 130)):
        values = dict(zip(symbols, sizes, strict=True))

        def at(number: Any, values: dict[Any, int] = values) -> Any:
            what = meaning(number) if isinstance(number, torch.SymInt) else number
            return what.evaluate(values.__getitem__) if isinstance(what, Expression) else what

        with FakeMode():
            assert described(found, at) == described(CALLS[name](make, *sizes), lambda size: size), sizes


@pytest.mark.parametrize("how", [{}, {"is_causal": True}, {"dropout_p": 0.1}])
def test_attention_without_a_fused_kernel(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of float64 there is none on a GPU: PyTorch writes it out, by products that read sizes in some versions."""
    monkeypatch.setattr(symbolic_decomps, "_multiplies_by_integers", lambda: True)
    shape_env = ShapeEnv()
    symbols = [shape_env.symbol(text, size) for text, size in (("s0", 65), ("s1", 37))]
    n, m = (as_number(shape_env, Expression.of(symbol)) for symbol in symbols)
    for dtype in (torch.float64, torch.float32):
        with FakeMode():
            x = fake(n, 4, m, 8, dtype=dtype)
            found = symbolic_decomps.spell_out(torch.nn.functional.scaled_dot_product_attention, (x, x, x), how)
        assert (found is NotImplemented) == (dtype is torch.float32)
        assert found is NotImplemented or found.shape == x.shape
    assert not [str(fact) for fact in shape_env.guards if fact.relation == "=="]
