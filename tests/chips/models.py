"""Four small models and their training with AdamW, by eager calls, compiled, or with the whole step compiled.

    far_off(Training("sim", "gpt2", "compiled").losses(), "gpt2") is None

A model's losses on a device are right if they are as near to those in float64 on the host as the host's are, twice as
far at most, and a few units in the last place.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import smelt

Made = tuple[nn.Module, Callable[[Any, Any], torch.Tensor], Callable[[], dict[str, torch.Tensor]]]
"""A model, its loss, and what makes a batch."""

STEPS = 4


def mlp() -> Made:
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))

    def loss(call: Any, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(call(batch["x"]), batch["labels"])

    return model, loss, lambda: {"x": torch.randn(8, 16), "labels": torch.randint(0, 4, (8,))}


def _own_loss(call: Any, batch: Any) -> torch.Tensor:
    found: torch.Tensor = call(**batch).loss
    return found


def gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip

    def batch() -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (2, 12))
        return {"input_ids": tokens, "labels": tokens}

    return GPT2LMHeadModel(config), _own_loss, batch


def _images(size: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"pixel_values": torch.randn(4, 3, size, size), "labels": torch.randint(0, 4, (4,))}


def resnet() -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4,
        problem_type="single_label_classification",
    )  # fmt: skip
    return ResNetForImageClassification(config), _own_loss, _images(32)


def vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        problem_type="single_label_classification",
    )  # fmt: skip
    return ViTForImageClassification(config), _own_loss, _images(16)


MODELS: dict[str, Callable[[], Made]] = {"mlp": mlp, "gpt2": gpt2, "resnet": resnet, "vit": vit}
HOW = ("eager", "compiled", "step")


class Training:
    """A model in training on a device. `how`: "eager", "compiled" (the model) or "step" (all of a step)."""

    def __init__(self, device: str, name: str, how: str = "eager", dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.device, self.dtype = device, dtype
        model, self._loss, self._batch = MODELS[name]()
        self.model = model.to(device, dtype).train()
        self._called: Any = smelt.compile(self.model) if how == "compiled" else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self._step = smelt.compile(self._train) if how == "step" else self._train

    def _train(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self._loss(self._called, batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def batch(self) -> dict[str, torch.Tensor]:
        found = self._batch()
        return {
            name: (each.to(self.dtype) if each.is_floating_point() else each).to(self.device)
            for name, each in found.items()
        }

    def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._step(batch)

    def losses(self, steps: int = STEPS) -> torch.Tensor:
        return torch.tensor([self.step(self.batch()).item() for _ in range(steps)], dtype=torch.float64)


def far_off(found: torch.Tensor, name: str) -> str | None:
    """What is wrong with a model's losses; None if they are right."""
    exact = Training("cpu", name, dtype=torch.float64).losses(len(found))
    error = (found - exact).abs().max().item()
    hosts = (Training("cpu", name).losses(len(found)) - exact).abs().max().item()
    allowed = 2 * hosts + 4 * torch.finfo(torch.float32).eps * exact.abs().max().item()
    return None if error <= allowed else f"{name}: {error:.2e} off, and {allowed:.2e} is allowed"
