"""Loops as trainers write them, on small Hugging Face models: gradients of several batches, autocast, workers of a
`DataLoader`, against eager."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import smelt

transformers = pytest.importorskip("transformers")


class Sentences(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.tokens = torch.randint(0, 50, (12, 8), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tokens[index]


def losses(device: str, *, accumulate: int = 1, narrow: bool = False, workers: int = 0) -> list[float]:
    """Of each batch, in two epochs."""
    config = transformers.GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2, use_cache=False)
    torch.manual_seed(0)
    model: Any = transformers.GPT2LMHeadModel(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = DataLoader(Sentences(), 3, num_workers=workers)
    found: list[torch.Tensor] = []
    for _ in range(2):
        for number, batch in enumerate(batches):
            tokens = batch.to(device)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=narrow):
                loss = model(input_ids=tokens, labels=tokens).loss
            (loss / accumulate).backward()
            found.append(loss.detach())
            if (number + 1) % accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return [float(each) for each in found]


@pytest.mark.parametrize("accumulate", [2, 4])
def test_gradients_of_several_batches(accumulate: int) -> None:
    assert losses("lazy", accumulate=accumulate) == pytest.approx(losses("cpu", accumulate=accumulate), rel=2e-5)


def test_autocast() -> None:
    mine, eager = losses("lazy", narrow=True), losses("cpu", narrow=True)
    assert mine == pytest.approx(eager, rel=2e-2)
    assert mine[-1] < mine[0]


def test_autocast_of_several_batches() -> None:
    mine, eager = (losses(device, narrow=True, accumulate=2) for device in ("lazy", "cpu"))
    assert mine == pytest.approx(eager, rel=2e-2)


def test_workers_bring_the_batches() -> None:
    assert losses("lazy", workers=2) == pytest.approx(losses("cpu"), rel=2e-5)


def test_a_second_training_compiles_nothing() -> None:
    losses("lazy", accumulate=2)
    before = smelt.lazy.explain().compile_count
    losses("lazy", accumulate=2)
    assert smelt.lazy.explain().compile_count - before == 0
