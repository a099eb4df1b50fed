"""Loops as trainers write them, on small Hugging Face models: gradients of several batches, autocast, workers of a
`DataLoader`, against eager."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
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


@pytest.fixture
def _own_state() -> Iterator[None]:
    """accelerate chooses a device once in a process."""
    state = pytest.importorskip("accelerate.state").AcceleratorState
    state._reset_state(True)
    yield
    state._reset_state(True)


@pytest.mark.usefixtures("_own_state")
@pytest.mark.parametrize("named", ["lazy", "lazy:0"])
def test_accelerate_takes_the_device_that_the_environment_names(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate: Any = pytest.importorskip("accelerate")

    def trained(accelerator: Any) -> tuple[str, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        model, optimizer, batches = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=0.01), DataLoader(torch.randn(16, 8), batch_size=4)
        )
        for batch in batches:
            loss = nn.functional.mse_loss(model(batch), batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss.device.type, loss.item()

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", named)
    device, loss = trained(accelerate.Accelerator())
    accelerate.state.AcceleratorState._reset_state(True)
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
    assert device == "lazy"
    assert loss == pytest.approx(trained(accelerate.Accelerator(cpu=True))[1], rel=1e-5)


@pytest.mark.usefixtures("_own_state")
def test_a_trainer_that_takes_a_model_from_the_device_is_warned_of() -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    model = nn.Linear(2, 2).to("lazy")
    with pytest.warns(smelt.SmeltWarning, match="ACCELERATE_TORCH_DEVICE=lazy:0"):
        accelerate.Accelerator(cpu=True).prepare(model)
    assert model.weight.device.type == "cpu"


def test_a_program_that_moves_its_model_is_not_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nn.Linear(2, 2).to("lazy").to("cpu").weight.device.type == "cpu"
