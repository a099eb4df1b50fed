"""Models of `transformers` fine-tuned on the lazy device by loops like Trainer's: eager's losses, one graph a step.

A loop has batches of a DataLoader, a schedule, clipping, accumulated gradients, autocast, an evaluation after each
epoch and a checkpoint in the middle, from which another process would go on.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

import smelt
from smelt.lazy.timeline import LazyRun

Batch = dict[str, torch.Tensor]


def _words(chance: torch.Generator, length: int = 8) -> torch.Tensor:
    return torch.randint(1, 50, (length,), generator=chance)


def gpt2() -> nn.Module:
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, eos_token_id=0)
    return GPT2LMHeadModel(config)


def gpt2_row(chance: torch.Generator) -> Batch:
    words = _words(chance)
    return {"input_ids": words, "labels": words}


def bert() -> nn.Module:
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def bert_row(chance: torch.Generator) -> Batch:
    mask = (torch.arange(8) < torch.randint(3, 9, (1,), generator=chance)).long()
    label = torch.randint(3, (), generator=chance)
    return {"input_ids": _words(chance) * mask, "attention_mask": mask, "labels": label}


def vit() -> nn.Module:
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=3,
    )  # fmt: skip
    return ViTForImageClassification(config)


def vit_row(chance: torch.Generator) -> Batch:
    image = torch.randn(3, 8, 8, generator=chance)
    return {"pixel_values": image, "labels": torch.randint(3, (), generator=chance)}


def t5() -> nn.Module:
    config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def t5_row(chance: torch.Generator) -> Batch:
    return {"input_ids": _words(chance), "labels": _words(chance, 6)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Batch]]] = {
    "gpt2": (gpt2, gpt2_row),
    "bert": (bert, bert_row),
    "vit": (vit, vit_row),
    "t5": (t5, t5_row),
}


class Rows(Dataset[Batch]):
    def __init__(self, make: Callable[[torch.Generator], Batch], count: int, seed: int) -> None:
        self._rows = [make(torch.Generator().manual_seed(seed + number)) for number in range(count)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Batch:
        return self._rows[number]


class Loop:
    """One fine-tuning. `losses` has those of training, `evaluations` those in between."""

    def __init__(self, name: str, device: str, *, accumulate: int = 1, narrow: bool = False, workers: int = 0) -> None:
        make, row = MODELS[name]
        torch.manual_seed(0)
        self.device, self.accumulate, self.narrow = device, accumulate, narrow
        self.model = make().to(device)
        decayed = [each for each in self.model.parameters() if each.dim() > 1]
        others = [each for each in self.model.parameters() if each.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min((step + 1) / 3, 1.0))
        self.rows, self.held_out, self.workers = Rows(row, 8, 100), Rows(row, 4, 900), workers
        self.total = torch.tensor(0.0).to(device)
        self.losses: list[float] = []
        self.evaluations: list[float] = []

    def batches(self, rows: Rows, **options: Any) -> Iterator[Batch]:
        chance = torch.Generator().manual_seed(len(self.losses))
        for batch in DataLoader(rows, batch_size=2, generator=chance, num_workers=self.workers, **options):
            yield {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}

    def loss(self, batch: Batch) -> torch.Tensor:
        cast = torch.autocast(self.device, torch.bfloat16) if self.narrow else contextlib.nullcontext()
        with cast:
            found: torch.Tensor = self.model(**batch).loss
        return found

    def epoch(self) -> None:
        self.model.train()
        for number, batch in enumerate(self.batches(self.rows, shuffle=True, pin_memory=self.device == "lazy"), 1):
            loss = self.loss(batch) / self.accumulate
            loss.backward()
            self.total += loss.detach()
            if number % self.accumulate:
                continue
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.losses.append(self.total.item())
            self.total -= self.total
        self.model.eval()
        with torch.no_grad():
            found = torch.stack([self.loss(batch) for batch in self.batches(self.held_out)])
        self.evaluations.append(found.mean().item())

    def checkpoint(self) -> dict[str, Any]:
        file = io.BytesIO()
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**saved, "random": torch.get_rng_state(), "losses": self.losses}, file)
        file.seek(0)
        found: dict[str, Any] = torch.load(file)
        return found

    def go_on_from(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        torch.set_rng_state(saved["random"].cpu())
        self.losses = list(saved["losses"])


def runs_since(count: int) -> list[LazyRun]:
    found = smelt.lazy.explain()
    return list(found.runs[count - found.run_count :]) if found.run_count > count else []


def close(found: list[float], wanted: list[float], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_fine_tuning_is_eagers(name: str) -> None:
    eager = Loop(name, "cpu")
    for _ in range(3):
        eager.epoch()
    before = smelt.lazy.explain()
    loop = Loop(name, "lazy")
    loop.epoch()
    steps = [run for run in runs_since(before.run_count) if run.reason == "an optimizer's step"]
    assert [run.how for run in steps] == ["compiled", "compiled", "cached", "cached"]
    saved = loop.checkpoint()
    loop.epoch()  # its first step is recorded otherwise: what the loop did after a step has run with the evaluation
    began = smelt.lazy.explain().run_count
    loop.epoch()
    assert {run.how for run in runs_since(began)} == {"cached"}
    assert sum(run.reason == "an optimizer's step" for run in runs_since(began)) == 4
    close(loop.losses, eager.losses)
    close(loop.evaluations, eager.evaluations)
    assert smelt.lazy.explain().fallbacks == before.fallbacks
    again = Loop(name, "lazy")
    again.go_on_from(saved)
    again.epoch()
    again.epoch()
    assert again.losses == loop.losses
    assert again.evaluations == loop.evaluations[1:]
