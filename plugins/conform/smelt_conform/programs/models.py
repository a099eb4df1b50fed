"""Four small models in plain torch.nn, for the level `training`: MLP, GPT-2, ResNet, ViT.

make, batch = MODELS["gpt2"];  loss = make()(*batch(step))
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
CLASSES = 10


class Classifier(nn.Module):
    """A model with its loss: inputs and classes → loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x).flatten(0, -2), y.flatten())


def mlp() -> nn.Module:
    return Classifier(nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, CLASSES)))


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT2(nn.Module):
    """Tokens → logits of the next tokens; the embedding and the output layer share weights."""

    def __init__(self, vocabulary: int = 50, length: int = 12, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 2, causal=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return F.linear(self.norm(self.blocks(self.tokens(x) + self.places(places))), self.tokens.weight)


def gpt2() -> nn.Module:
    return Classifier(GPT2())


class Residual(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet() -> nn.Module:
    first = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))
    return Classifier(nn.Sequential(first, Residual(4, 4, 1), Residual(4, 8, 2), last))


class ViT(nn.Module):
    """Image patches and a class token."""

    def __init__(self, image: int = 16, patch: int = 4, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, 2, causal=False) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        scores: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return scores


def vit() -> nn.Module:
    return Classifier(ViT())


def _classified(*shape: int) -> Callable[[int], Batch]:
    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(*shape, generator=generator)
        return x, torch.randint(0, CLASSES, shape[:1], generator=generator)

    return batch


def _text(step: int) -> Batch:
    tokens = torch.randint(0, 50, (4, 13), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "mlp": (mlp, _classified(8, 20)),
    "gpt2": (gpt2, _text),
    "resnet": (resnet, _classified(4, 3, 16, 16)),
    "vit": (vit, _classified(4, 3, 16, 16)),
}
