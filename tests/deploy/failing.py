"""Models that write state before they may fail."""

import torch


class Tallied(torch.nn.Module):
    """Counts calls, then branches, then may raise or need memory."""

    count: torch.Tensor
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if x.sum() > 0:
            self.total += x[0]
            if self.total.max() > 100:
                raise ValueError("the total is too large")
            return (x * self.total).cumsum(0)
        self.total -= 1
        return x.repeat(8, 1).t()


def example(rows: int = 3, value: float = 1.0) -> torch.Tensor:
    """An input of the model."""
    return torch.full((rows, 4), value)
