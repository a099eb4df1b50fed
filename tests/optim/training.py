"""Small models and whole training steps, and how far from one training another one is.

    Task("llama") and "Adam"   →   Course: fifty steps, with losses, parameters, buffers and the optimizer's state

Tests hold compiled steps against these.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.targets import seeded, there

Step = Callable[..., torch.Tensor]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
_TEXT = {"vocab_size": 64, "use_cache": False}
_IMAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 8}
_HUGGING_FACE: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        | _TEXT,
    ),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "max_position_embeddings": 16}
        | _TEXT,
    ),
    "resnet": ("ResNetForImageClassification", _IMAGES | {"hidden_act": "gelu"}),
    "resnet with relu": ("ResNetForImageClassification", _IMAGES),
}
MODELS = ("mlp", "gpt2", "llama", "resnet")


def _logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found: Any = model(x)
    return (found if isinstance(found, torch.Tensor) else found.logits).flatten(0, -2)


def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The step of every test: all there is between two batches."""
    opt.zero_grad()
    loss = F.cross_entropy(_logits(model, x), y.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss


@dataclass(frozen=True)
class Task:
    """A model and the batches it is trained on."""

    name: str
    seed: int = 0

    @there()
    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The same weights each time."""
        torch.manual_seed(self.seed)
        if self.name == "mlp":
            return nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 8)).to(dtype)
        import transformers

        architecture, settings = _HUGGING_FACE[self.name]
        kind = getattr(transformers, architecture)
        built: nn.Module = kind(kind.config_class(**settings)).train().to(torch.get_default_device(), dtype)
        return built

    @there()
    def batch(self, number: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """Another one for each number."""
        generator = seeded(1000 * self.seed + number)
        if self.name in ("gpt2", "llama"):
            tokens = torch.randint(0, 64, (2, 6, 16), generator=generator)
            return tokens[0], tokens[1]
        shape = (16, 24) if self.name == "mlp" else (6, 3, 32, 32)
        wanted = torch.randint(0, 8, shape[:1], generator=generator)
        return torch.randn(shape, generator=generator).to(dtype), wanted


@contextlib.contextmanager
def nothing_narrow() -> Iterator[None]:
    """A model in float64 stays there: what it converts to float32 by name is float64 too."""
    convert, narrow = torch.Tensor.to, torch.Tensor.float

    def wide(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    def converted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return convert(tensor, *map(wide, args), **{name: wide(value) for name, value in kwargs.items()})

    torch.Tensor.to, torch.Tensor.float = converted, torch.Tensor.double  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = convert, narrow  # type: ignore[method-assign]


def _wide(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value).detach().double().clone() for name, value in tensors.items()}


@dataclass(frozen=True)
class Course:
    """What training came to."""

    losses: torch.Tensor
    tensors: dict[str, torch.Tensor]

    def error(self, exact: "Course") -> dict[str, float]:
        """How far off it is, on the average: losses, parameters and buffers, each kind of the optimizer's state."""
        gathered: dict[str, list[torch.Tensor]] = {"losses": [(self.losses - exact.losses).abs()]}
        for name, value in exact.tensors.items():
            kind = name.split(" of ")[0] if " of parameter " in name else "parameters"
            gathered.setdefault(kind, []).append((self.tensors[name] - value).abs().flatten())
        return {kind: torch.cat(errors).mean().item() for kind, errors in gathered.items()}

    def size(self) -> dict[str, float]:
        """The averages of what errors are errors of."""
        nothing = Course(torch.zeros_like(self.losses), {name: v * 0 for name, v in self.tensors.items()})
        return self.error(nothing)


@dataclass(frozen=True)
class Learner:
    """A model and its optimizer."""

    model: nn.Module
    opt: torch.optim.Optimizer

    def start_from(self, other: "Learner") -> None:
        """Stand where another one stands: parameters, buffers, the optimizer's state. Objects stay what they are."""
        with torch.no_grad():
            for one, its in zip(_held(self.model), _held(other.model), strict=True):
                one.copy_(its)
            for one, its in zip(self.model.parameters(), other.model.parameters(), strict=True):
                for name, value in self.opt.state[one].items():
                    if value is not None:
                        value.copy_(other.opt.state[its][name])

    def update_by(self, other: "Learner") -> None:
        """Do the optimizer's step with another one's gradients."""
        for one, its in zip(self.model.parameters(), other.model.parameters(), strict=True):
            assert its.grad is not None
            one.grad = its.grad.detach().to(one.dtype, copy=True)
        self.opt.step()

    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters and the optimizer's state, in float64."""
        found: dict[str, Any] = dict(self.model.named_parameters())
        for index, kept in self.opt.state_dict()["state"].items():
            found |= {f"{name} of parameter {index}": value for name, value in kept.items() if value is not None}
        return _wide(found)

    def buffers(self) -> dict[str, torch.Tensor]:
        return _wide(dict(self.model.named_buffers()))

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.trained() | self.buffers()

    def gradients(self) -> dict[str, torch.Tensor]:
        return _wide({f"gradient of {name}": value.grad for name, value in self.model.named_parameters()})


def learner(task: Task, optimizer: str, dtype: torch.dtype = torch.float32) -> Learner:
    model = task.model(dtype)
    return Learner(model, OPTIMIZERS[optimizer](model.parameters()))


def _held(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def train(task: Task, optimizer: str, step: Step, dtype: torch.dtype = torch.float32, steps: int = 50) -> Course:
    """So many steps from the task's weights."""
    it = learner(task, optimizer, dtype)
    losses = [step(it.model, it.opt, *task.batch(number, dtype)).detach().double() for number in range(steps)]
    return Course(torch.stack(losses), it.tensors())
