"""Train a model on lazy tensors: nothing of the loop is compiled by name, and each step is one program.

    python examples/lazy.py
"""

import torch
from torch import nn

import smelt


def train(device: str, steps: int = 6) -> list[float]:
    """An ordinary loop; that its tensors are lazy is the device's business."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(64, 16).to(device), torch.randint(0, 4, (64,)).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    smelt.lazy.enable(background=False)  # wait for programs, to show them
    x = smelt.lazy.tensor([1.0, 2.0, 3.0])
    w = (x + 1) * 2 - 0.5
    print(f"{smelt.lazy.explain().pending} operators wait")
    print(w)
    print(f"{smelt.lazy.explain().runs[-1].kernels} kernel ran")

    before = smelt.lazy.explain().run_count
    for ours, eager in zip(train("lazy"), train("cpu"), strict=True):
        print(f"loss {eager:.4f} eagerly, {ours:.4f} lazily")
    found = smelt.lazy.explain()
    for run in found.runs[before - found.run_count :]:
        print(f"{run.operators} operators for {run.reason}: {run.how}")


if __name__ == "__main__":
    main()
