"""Products and convolutions of dynamic sizes without a library: compiled once, right at every size."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from tests.targets import chosen

pytestmark = pytest.mark.skipif(chosen != ("cpu", "cpu"), reason="kernels for GPUs hold no products")

NONE = {"library": "none", "check_specs": True}
SIZES = ((2, 8), (3, 17), (2, 9), (5, 33), (4, 64), (7, 5), (2, 8))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Counts are of one test alone: those of the tests before it are no part of what is asserted."""
    smelt.reset()
    yield
    smelt.reset()


def _gpt2(transformers: Any) -> nn.Module:
    given = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 300, "n_positions": 128}
    made: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**given, bos_token_id=0, eos_token_id=0))
    return made


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def _bert(transformers: Any) -> nn.Module:
    made: nn.Module = transformers.BertModel(transformers.BertConfig(**_SMALL, vocab_size=300))
    return made


def _vit(transformers: Any) -> nn.Module:
    made: nn.Module = transformers.ViTModel(transformers.ViTConfig(**_SMALL, image_size=32, patch_size=8))
    return made


def _resnet(transformers: Any) -> nn.Module:
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
    made: nn.Module = transformers.ResNetModel(config)
    return made


def _text(batch: int, length: int) -> Tensor:
    return torch.randint(0, 300, (batch, length))


MODELS: dict[str, tuple[Callable[[Any], nn.Module], Callable[[int, int], Tensor]]] = {
    "GPT-2": (_gpt2, _text),
    "BERT": (_bert, _text),
    "ViT": (_vit, lambda batch, _: torch.randn(batch, 3, 32, 32)),
    "ResNet": (_resnet, lambda batch, size: torch.randn(batch, 3, 2 * size + 20, 2 * size + 21)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_are_compiled_once_for_all_sizes(name: str) -> None:
    """Batches, lengths and the sizes of images: later ones bring neither a recompile nor a kernel."""
    build, make = MODELS[name]
    torch.manual_seed(0)
    model = build(pytest.importorskip("transformers")).eval()
    compiled = smelt.compile(model, dynamic=True, options=NONE)
    built = 0
    with torch.no_grad():
        for place, size in enumerate(SIZES):
            x = make(*size)
            torch.testing.assert_close(compiled(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
            assert not smelt.counters["recompiles"] and not smelt.counters["sizes_refused"]
            assert smelt.counters["kernels_built"] == built or not place
            built = smelt.counters["kernels_built"]


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(37, 50), nn.Linear(50, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = self.into(x).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, 32))  # type: ignore[no-any-return]


class Convolutions(nn.Module):
    """Strided, grouped, by channel, dilated, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, 8, 3, padding=1)
        self.halved = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2)
        self.by_channel = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.doubled = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.halved(F.relu(self.into(x))))
        return self.out(self.doubled(F.gelu(self.by_channel(x))).mean((2, 3)))  # type: ignore[no-any-return]


TRAINED: dict[str, tuple[type[nn.Module], Callable[[int], Tensor], int]] = {
    "linear": (Linear, lambda size: torch.randn(5 * size + 3, 37), 1),
    "attention": (Attention, lambda size: torch.randn(size + 2, 7 * size + 3, 32), 1),
    "convolutions": (Convolutions, lambda size: torch.randn(size + 2, 3, 12 + 3 * size, 13 + 2 * size), 2),
}


def _gradients(model: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    model.zero_grad()
    run(x).square().sum().backward()
    return [x.grad, *(each.grad for each in model.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("name", TRAINED)
def test_steps_of_training(name: str) -> None:
    """Against float64, and no kernels but for the sizes of one parity and of the other."""
    kind, make, versions = TRAINED[name]
    torch.manual_seed(0)
    model = kind()
    exact = kind().double()
    exact.load_state_dict(model.state_dict())
    compiled = smelt.compile(model, dynamic=True, options=NONE)
    built = set()
    for size in (1, 2, 5, 3, 4, 0):
        x = make(size)
        got, want = _gradients(model, compiled, x), _gradients(exact, exact, x.double())
        for mine, truth in zip(got, want, strict=True):
            assert (mine - truth).abs().max() <= 1e-5 * truth.abs().max()
        built.add(smelt.counters["kernels_built"])
        assert not smelt.counters["sizes_refused"]
    assert len(built) <= versions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_of_every_form(dtype: torch.dtype) -> None:
    def several(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        batched = torch.stack([a @ b, b.t() @ a.t() if a.shape[0] == b.shape[1] else a @ b])
        return (
            torch.addmm(c[0], a, b, alpha=0.5, beta=2), torch.baddbmm(c, batched[:, :, :1], batched[:, :1]),
            torch.mv(a, b[:, 0]), torch.dot(a[0], b[:, 1]), torch.einsum("ik,kj,bij->bi", a, b, c), a @ a.t(),
        )  # fmt: skip

    compiled = smelt.compile(several, dynamic=True, fullgraph=True, options=NONE)
    for m, k, n in ((5, 7, 11), (16, 33, 40), (70, 8, 9), (2, 100, 65)):
        torch.manual_seed(m)
        given = [torch.randn(shape).to(dtype) for shape in ((m, k), (k, n), (2, m, n))]
        for mine, eager, truth in zip(
            compiled(*given), several(*given), several(*(each.double() for each in given)), strict=True
        ):
            rounding = 16 * torch.finfo(dtype).eps * truth.abs().max()
            assert (mine.double() - truth).abs().max() <= 2 * (eager.double() - truth).abs().max() + rounding
