"""Train a classifier: the usual loop, with one line more.

    python examples/classifier.py

The data are points of ten clouds, made here. The same training runs eagerly first, so that the losses can be compared.
"""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smelt


class Classifier(nn.Module):
    """784 numbers in, scores of ten classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(784, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x)
        return scores


def clouds(points: int) -> TensorDataset:
    """Points round ten centres, with the number of their centre."""
    centres = torch.randn(10, 784)
    labels = torch.randint(0, 10, (points,))
    return TensorDataset(centres[labels] + 4 * torch.randn(points, 784), labels)


def train(model: nn.Module, data: TensorDataset, epochs: int = 3) -> list[float]:
    """The mean loss of each epoch."""
    loader = DataLoader(data, batch_size=32, drop_last=True)  # batches of one size: compiled once
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _ in range(epochs):
        total = 0.0
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def main() -> None:
    torch.manual_seed(0)
    data = clouds(640)
    model = Classifier()
    compiled = smelt.compile(copy.deepcopy(model))  # this is the one line

    eager = train(model, data)
    ours = train(compiled, data)
    for epoch, (one, other) in enumerate(zip(eager, ours, strict=True), 1):
        print(f"epoch {epoch}: loss {one:.4f} eagerly, {other:.4f} compiled")
    print(f"compiled {smelt.counters['graphs']} graph, called {smelt.counters['calls']} times")

    with torch.no_grad():
        x, y = data.tensors
        right = (compiled.eval()(x).argmax(-1) == y).float().mean()
    print(f"{right:.0%} of the points are told right")


if __name__ == "__main__":
    main()
