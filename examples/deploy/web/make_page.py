"""A page that runs a model: train a small network on drawn shapes, and export it as WebAssembly beside `index.html`.

    python examples/deploy/web/make_page.py build/shapes
    python -m http.server --directory build/shapes 8000        then open http://localhost:8000

The page needs no server that computes: the model is `model.wasm`, which runs in the browser, and `model.mjs`.
"""

import math
import shutil
import sys
from pathlib import Path

import torch
from torch import nn

import smelt

SHAPES = ("circle", "square", "cross", "line")
SIZE = 24


class Shapes(nn.Module):
    """Pictures of 24 × 24 in, probabilities of four shapes out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * (SIZE // 4) ** 2, len(SHAPES)),
            nn.Softmax(-1),
        )

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(picture)
        return found


def outline(shape: int, turn: float) -> list[tuple[float, float]]:
    """Points of a shape of radius one round (0, 0)."""
    steps = [step / 40 for step in range(41)]
    if shape == 0:
        return [(math.cos(2 * math.pi * t), math.sin(2 * math.pi * t)) for t in steps]
    if shape == 1:
        sides = [(1, t) for t in steps] + [(-1, t) for t in steps] + [(t, 1) for t in steps] + [(t, -1) for t in steps]
        points = [(2 * x - 1 if 0 <= x < 1 else x, 2 * y - 1 if 0 <= y < 1 else y) for x, y in sides]
        points = [(0.75 * x, 0.75 * y) for x, y in points]
    elif shape == 2:
        points = [(2 * t - 1, 0.0) for t in steps] + [(0.0, 2 * t - 1) for t in steps]
    else:
        points = [(2 * t - 1, 0.0) for t in steps]
    return [(x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)) for x, y in points]


def drawn(shape: int, draw: torch.Generator) -> torch.Tensor:
    """A picture of a shape, somewhere, of some size, at some angle."""
    radius, x, y, turn = (torch.rand(4, generator=draw) * torch.tensor([4, 4, 4, 2 * math.pi])).tolist()
    points = torch.tensor(outline(shape, turn)) * (radius + 5) + SIZE / 2 - 2 + torch.tensor([x, y])
    places = torch.arange(float(SIZE))
    across, down = (points[:, axis, None] - places for axis in (0, 1))
    distances = torch.hypot(down[:, :, None], across[:, None, :]).amin(0)
    return (1.6 - distances).clamp(0, 1)


def trained(steps: int = 300) -> Shapes:
    """A model that tells them apart."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(1024) % len(SHAPES)
    pictures = torch.stack([drawn(int(label), draw) for label in labels]).unsqueeze(1)
    model = Shapes()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        chosen = torch.randint(0, len(labels), (64,), generator=draw)
        loss = nn.functional.nll_loss(model(pictures[chosen]).clamp_min(1e-9).log(), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    return model.eval()


def make_page(folder: Path, model: Shapes) -> None:
    """All that the page needs, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    artifact = smelt.export(model, (torch.zeros(1, 1, SIZE, SIZE),), name="shapes")
    for file in artifact.save_static(folder / "model", "wasm32"):
        print(f"{file}: {file.stat().st_size} bytes")
    shutil.copy(Path(__file__).with_name("index.html"), folder)


if __name__ == "__main__":
    make_page(Path(sys.argv[1] if len(sys.argv) > 1 else "build/shapes"), trained())
