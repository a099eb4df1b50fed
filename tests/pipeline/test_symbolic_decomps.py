"""Functions that ask for sizes as integers inside: compiled once for all sizes, with eager's results and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import smelt
from smelt.meta import symbolic_decomps
from smelt.meta.symbolic_decomps import IN_PLACE, SPELLED, _derives_the_diagonal
from tests import processes
from tests.targets import HOST, chosen

torch.manual_seed(0)
GRU_CELL, LSTM_CELL, GRU = nn.GRUCell(4, 5), nn.LSTMCell(4, 5), nn.GRU(4, 5, 2, batch_first=True, bidirectional=True)
LSTM, PARAMETRIC = nn.LSTM(4, 5, bidirectional=True), nn.PReLU(4)
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)
BILINEAR, LINEAR, MATRIX = nn.Bilinear(4, 4, 3), nn.Linear(4, 4), torch.randn(4, 4)


def rows(size: int) -> torch.Tensor:
    return torch.randn(size, 4)


def square(size: int) -> torch.Tensor:
    return torch.randn(size, size)


def batch(size: int) -> torch.Tensor:
    return torch.randn(size, 6, 4)


def image(size: int) -> torch.Tensor:
    return torch.randn(2, 8, size + 2, size + 4)


def even_image(size: int) -> torch.Tensor:
    return torch.randn(size, 3, 2 * size, 4)


def signs(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.detach()[:, 0] > 0, 1.0, -1.0)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], torch.Tensor]]] = {
    "masked_fill_ of integers": (lambda x: x * (x > 0).long().masked_fill_(x > 1, -100), rows),
    "masked_fill of bools": (lambda x: x * (x > 0).masked_fill(x > 1, False), rows),
    "linspace": (lambda x: x * torch.linspace(-1, 1, x.shape[0])[:, None], rows),
    "linspace of doubles": (lambda x: x * torch.linspace(2, 0.5, x.shape[0], dtype=torch.float64)[:, None], rows),
    "logspace": (lambda x: x * torch.logspace(0, 1, x.shape[0])[:, None], rows),
    "fftfreq": (lambda x: x * torch.fft.fftfreq(x.shape[0], 0.5)[:, None], rows),
    "rfftfreq": (lambda x: x.sum() * torch.fft.rfftfreq(x.shape[0]), rows),
    "hann_window": (lambda x: x * torch.hann_window(x.shape[0])[:, None], rows),
    "hamming_window": (lambda x: x * torch.hamming_window(x.shape[0], periodic=False)[:, None], rows),
    "kron": (lambda x: torch.kron(x, x[:2].reshape(2, 2, 2)), rows),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(0), 0) + x.take_along_dim(x.argsort(1), 1), rows),
    "roll": (lambda x: x.roll(1) - torch.roll(x, 3), rows),
    "diag": (lambda x: torch.diag(x) + x.diag(1).sum(), square),
    "trace": (lambda x: torch.trace(x) * x.sin(), square),
    "count_nonzero": (lambda x: x.relu() * torch.count_nonzero(x.relu(), dim=0) + torch.count_nonzero(x), rows),
    "block_diag": (lambda x: torch.block_diag(x, x[:1] * 2, x.T), rows),
    "std": (lambda x: x.std() + torch.std(x, unbiased=False) * x.var() + torch.var(x, correction=0), rows),
    "std_mean": (lambda x: torch.std_mean(x)[0] * torch.var_mean(x)[1], rows),
    "bilinear": (lambda x: BILINEAR(x, x + 1), rows),
    "linear": (lambda x: F.linear(x, LINEAR.weight) * LINEAR(x.transpose(0, 1)).transpose(0, 1), batch),
    "a batch by a matrix": (lambda x: x @ MATRIX + x.transpose(0, 1).matmul(MATRIX).transpose(0, 1), batch),
    "multi_head_attention_forward": (lambda x: ATTENTION(x, x, x, need_weights=False)[0], batch),
    "a batch by a vector": (lambda x: x @ MATRIX[:, 0] + torch.matmul(x, LINEAR.weight[0]), batch),
    "a vector by a batch": (lambda x: (MATRIX[0, :1].expand(6) @ x) + LINEAR.weight.flatten()[:6] @ x, batch),
    "batches by batches": (lambda x: (x @ x.mT) * (x[:1] @ x.mT) + x[:, None].matmul(x.mT[None, :1])[:, 0], batch),
    "polar": (lambda x: torch.view_as_real(torch.polar(x.exp(), x) * torch.complex(x, x + 1)), rows),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 4) * x, image),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), image),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), even_image),
    "avg_pool2d of all": (lambda x: F.avg_pool2d(x, x.shape[2:]), image),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2, padding=1) * 2, batch),
    "pad_sequence": (lambda x: pad_sequence([x[:2], x, x[1:]], batch_first=True, padding_value=2.0), rows),
    "glu": (lambda x: F.glu(x) * 2, rows),
    "prelu": (lambda x: PARAMETRIC(x) + F.prelu(x, PARAMETRIC.weight[:1]), rows),
    "margin_ranking_loss": (lambda x: F.margin_ranking_loss(x[:, 0], x[:, 1], signs(x), margin=0.1), rows),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, signs(x)[:, None], reduction="sum"), rows),
    "cosine_embedding_loss": (lambda x: F.cosine_embedding_loss(x, x.flip(1), signs(x), 0.1), rows),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, signs(x)[:, None].expand(-1, 4)), rows),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x[:1]) + torch.cosine_similarity(x, 0 * x + 1e-9, -1), rows),
    "cross entropy, weighted": (
        lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), pos_weight=torch.arange(1.0, 5.0)),
        rows,
    ),
    "GRUCell": (GRU_CELL, rows),
    "LSTMCell": (lambda x: torch.cat(LSTM_CELL(x), 1), rows),
    "GRU": (lambda x: torch.cat([each.flatten() for each in GRU(x)]), batch),
    "LSTM": (lambda x: LSTM(x.transpose(0, 1))[0] + LSTM(x.transpose(0, 1))[1][1].mean(), batch),
    "Normal": (lambda x: torch.distributions.Normal(x, 1.0).log_prob(x.detach() + 1), rows),
    "Categorical": (lambda x: torch.distributions.Categorical(logits=x).entropy(), rows),
    "clamp_": (lambda x: (x * 2).clamp_(-1, 1) + (x * 2).clamp_min_(0) * x.mul(3).clamp_max_(1), rows),
    "clamp_ without gradients": (lambda x: x * (x.detach() * 2).clamp_(min=0), rows),
    "hardtanh": (lambda x: F.hardtanh(x * 2, -1.0, 1.0, True) + F.relu6(x * 3, inplace=True), rows),
    "hardswish": (lambda x: F.hardswish(x * 2, inplace=True) + F.hardsigmoid(x * 3, inplace=True), rows),
    "threshold": (lambda x: F.threshold(x * 2, 0.1, 3.0, True), rows),
}


def run(function: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    result = function(x)
    (gradient,) = torch.autograd.grad((result * torch.arange(1.0, result.numel() + 1).reshape(result.shape)).sum(), x)
    return result, gradient


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("name", CASES)
def test_one_version_for_all_sizes(name: str, backend: str) -> None:
    if name == "trace" and not _derives_the_diagonal():
        pytest.skip("this version of PyTorch has another derivative, which is left to it")
    function, make = CASES[name]
    smelt.reset()
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    for size in (5, 7, 9, 3, 12, 4):
        x = make(size)
        for mine, eager in zip(run(compiled, x), run(function, x), strict=True):
            assert mine.stride() == eager.stride()
            largest = max(1.0, float(eager.detach().abs().max()))  # gradients of sums by 1, 2, 3, … cancel
            torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-6 * largest)
    assert smelt.counters["graphs"] == 2
    assert smelt.counters["sizes_compiled"] == smelt.counters["sizes_refused"] == 0


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_products_within_attention_are_spelled_out(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a PyTorch that reads the sizes of a batch of matrices as integers: it does so within this function too."""
    monkeypatch.setattr(symbolic_decomps, "_multiplies_by_integers", lambda: True)
    seen: list[int] = []
    real = symbolic_decomps._matmul
    monkeypatch.setattr(symbolic_decomps, "_matmul", lambda *args: seen.append(len(args)) or real(*args))
    symbolic_decomps._attending.cache_clear()
    test_one_version_for_all_sizes("multi_head_attention_forward", backend)
    symbolic_decomps._attending.cache_clear()
    assert seen


ATTENDING: dict[str, Callable[[torch.Tensor], Any]] = {
    "plain": lambda x: F.scaled_dot_product_attention(x, x + 1, x * 2),
    "causal": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "a mask of bools": lambda x: F.scaled_dot_product_attention(x, x, x, (x @ x.mT) > 0, scale=0.3),
    "a mask of floats": lambda x: F.scaled_dot_product_attention(x, x, x, x @ x.mT, scale=-0.3),
    "dropout": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=1.0),
}


@pytest.mark.skipif(chosen[0] != HOST, reason="of what the host writes out")
@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("name", ATTENDING)
def test_attention_that_is_written_out(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch does so where no fused kernel serves, with products that read sizes as integers in some versions."""
    monkeypatch.setattr(symbolic_decomps, "_multiplies_by_integers", lambda: True)
    seen: list[int] = []
    real = symbolic_decomps._multiplied
    monkeypatch.setattr(symbolic_decomps, "_multiplied", lambda *args: seen.append(len(args)) or real(*args))
    monkeypatch.setitem(CASES, name, (ATTENDING[name], batch))
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        test_one_version_for_all_sizes(name, backend)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert seen


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_are_compiled_apart(name: str) -> None:
    """Two, one and none after others: what eager yields, or raises."""
    function, make = CASES[name]
    smelt.reset()
    compiled = smelt.compile(function, backend="eager")
    for size in (5, 7, 2, 1, 0, 6):
        x = make(size)
        try:
            wanted = run(function, x)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                run(compiled, x)
        else:
            for mine, eager in zip(run(compiled, x), wanted, strict=True):
                torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_every_function_is_tried() -> None:
    """Each has a case above, by its name or by what leads to it."""
    tried = " ".join(CASES) + " var var_mean complex clamp_min_ clamp_max_ relu6 hardsigmoid"
    tried += " scaled_dot_product_attention"
    tried += " gru_cell lstm_cell gru lstm binary_cross_entropy_with_logits avg_pool2d _is_all_true clip_ matmul"
    names = {function.__name__ for function in (*SPELLED, *IN_PLACE)} - {"fn"}
    assert {name for name in names if name.removeprefix("fft").strip("_") not in tried} == set()


LENGTHS = """
import torch, smelt
lstm = torch.nn.LSTM(4, 4)
compiled = smelt.compile(lambda x: lstm(x)[0], backend="eager")
for length in (5, 7, 9, 11, 13):
    x = torch.randn(length, 3, 4)
    torch.testing.assert_close(compiled(x), lstm(x)[0])
assert smelt.counters["graphs"] <= 2, smelt.counters["graphs"]
"""


def test_an_lstm_of_many_lengths_is_left_whole() -> None:
    """In a process of its own: after all other tests it is compiled for each length, rightly; why is not known."""
    done = processes.run(LENGTHS)
    assert done.returncode == 0, done.stderr


def test_options_that_are_rare_are_left_to_pytorch() -> None:
    def function(x: torch.Tensor) -> Any:
        whole = torch.linspace(0, x.shape[0], x.shape[0], dtype=torch.int64)
        rounded = x.bfloat16()
        return x + whole[:, None], F.cosine_similarity(rounded, rounded), x.std(0), x.roll(1, 0), F.hardtanh(x)

    smelt.reset()
    compiled = smelt.compile(function, backend="eager")
    for size in (5, 7, 9):
        x = rows(size)
        for mine, eager in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(mine, eager)
