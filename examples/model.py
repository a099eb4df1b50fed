"""A small character-level transformer, as anybody would write it: nothing here knows that it will be compiled."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.project(x).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        result: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        x = x + self.mlp(self.before_mlp(x))
        return x


class CharTransformer(nn.Module):
    """Characters in, scores of the next character out; with `targets`, the cross entropy."""

    def __init__(self, characters: int, context: int, width: int = 128, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, characters)
        nn.init.normal_(self.embed.weight, std=0.1)  # as large as the positions: neither drowns the other

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.score(self.norm(x))
        if targets is None:
            return scores
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())
