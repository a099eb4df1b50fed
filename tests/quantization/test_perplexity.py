"""Perplexity of a small language model, trained here, after its layers are quantized."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import smelt

VOCABULARY, WIDTH, LENGTH = 64, 128, 48


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(self.first(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def language() -> tuple[Tensor, torch.Generator]:
    """The chances of each token after each pair of tokens: few are likely."""
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)).softmax(-1), generator


def drawn(count: int) -> Tensor:
    """Sequences of a language in which the token before the last chooses one of two tables."""
    chances, generator = language()
    generator.manual_seed(count)
    ids = torch.randint(0, VOCABULARY, (count, 2), generator=generator)
    other = chances.flip(0)
    for _ in range(LENGTH - 1):
        table = torch.where((ids[:, -2] % 2 == 0)[:, None], chances[ids[:, -1]], other[ids[:, -1]])
        ids = torch.cat((ids, torch.multinomial(table, 1, generator=generator)), 1)
    return ids


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(model(ids[:, :LENGTH]).flatten(0, 1), ids[:, 1 : LENGTH + 1].flatten())


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model, data = Model(), drawn(2_048)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(160):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / 160)
        optimizer.zero_grad()
        loss_of(model, data[torch.randint(0, len(data), (32,))]).backward()
        optimizer.step()
    return model.state_dict()


def perplexity(trained: dict[str, Tensor], to: str = "", **options: object) -> float:
    model = Model().eval()
    model.load_state_dict(trained)
    if to:
        smelt.quantize(model, to, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        return math.exp(loss_of(smelt.compile(model), drawn(256)))


def test_perplexity_rises_little(trained: dict[str, Tensor], record_property: object) -> None:
    samples = [drawn(64)[:, :LENGTH]]
    plain = perplexity(trained)
    assert plain < 0.5 * VOCABULARY  # it learned something
    rises = {
        "int8": perplexity(trained, "int8") / plain - 1,
        "int4, rounded": perplexity(trained, "int4", group_size=64) / plain - 1,
        "int4, calibrated": perplexity(trained, "int4", group_size=64, calibrate=samples) / plain - 1,
    }
    calibrated = {"group_size": 64, "calibrate": samples}
    bytes_too = {
        "int8": perplexity(trained, "int8", activations="int8") / plain - 1,
        "int4, calibrated": perplexity(trained, "int4", activations="int8", **calibrated) / plain - 1,
    }
    print("with activations of bytes:", {name: f"{rise:+.2%}" for name, rise in bytes_too.items()})
    print({name: f"{rise:+.2%}" for name, rise in rises.items()}, f"of {plain:.2f}")
    assert rises["int8"] <= 0.01
    assert rises["int4, calibrated"] <= 0.05
    assert rises["int4, calibrated"] < rises["int4, rounded"]
    assert bytes_too["int8"] <= 0.01
    assert bytes_too["int4, calibrated"] <= 0.05
