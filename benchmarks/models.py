"""The benchmark models: each a module, its inputs and a loss, built the same way in every process.

    MODELS["mlp"].build(torch.float32) → Case(module, inputs, kwargs, loss)
    case.loss(case.call(module)).backward()     is one training step

The first two need PyTorch alone. The others are architectures of Hugging Face at small sizes with random weights; they
compute their loss inside, and in training their dropout is on. `LARGE_MODELS` are for a GPU, without dropout:
`models_for("cuda")`. `SMALL_MODELS` are for inference alone, and any model can be had with a smaller batch:
`model_named("swin/1")`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

SEED = 20240917


@dataclass(frozen=True, slots=True)
class Case:
    """A model ready to be trained for a step. `loss` makes the scalar out of the output, outside the compiled part."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[[Any], torch.Tensor]
    kwargs: dict[str, torch.Tensor] = field(default_factory=dict)

    def call(self, model: Callable[..., Any]) -> Any:
        return model(*self.inputs, **self.kwargs)

    def inferring(self) -> "Case":
        """The same model for inference: nothing is dropped, nothing to learn is given."""
        kwargs = {name: value for name, value in self.kwargs.items() if name != "labels"}
        inputs = tuple(x.detach() for x in self.inputs)
        return Case(self.module.eval().requires_grad_(False), inputs, self.loss, kwargs)

    def first(self, batch: int) -> "Case":
        """The same model with the first `batch` samples of each input."""

        def part(x: torch.Tensor) -> torch.Tensor:
            return x.detach()[:batch].clone().requires_grad_(x.requires_grad)

        kwargs = {name: part(value) for name, value in self.kwargs.items()}
        return Case(self.module, tuple(map(part, self.inputs)), self.loss, kwargs)


@dataclass(frozen=True, slots=True)
class Model:
    """One benchmark: `build` makes the same weights and inputs whenever it is called, in the dtype asked for."""

    name: str
    what: str
    make: Callable[[], Case]
    random: bool = False  # whether a training step draws random numbers: no two runs need agree then

    def build(self, dtype: torch.dtype = torch.float32) -> Case:
        """The case, seeded; drawn in float32 and then converted, so that every dtype sees the same numbers."""

        def converted(x: torch.Tensor) -> torch.Tensor:
            return x.detach().to(dtype).requires_grad_(x.requires_grad) if x.is_floating_point() else x

        torch.manual_seed(SEED)
        case = self.make()
        kwargs = {name: converted(value) for name, value in case.kwargs.items()}
        return Case(case.module.to(dtype), tuple(map(converted, case.inputs)), case.loss, kwargs)

    def build_on(self, device: str, dtype: torch.dtype = torch.float32) -> Case:
        """The same on a device: drawn on the host, so that every device sees the same numbers."""
        case = self.build(dtype)
        if device == "cpu":
            return case

        def moved(x: torch.Tensor) -> torch.Tensor:
            return x.detach().to(device).requires_grad_(x.requires_grad)

        kwargs = {name: moved(value) for name, value in case.kwargs.items()}
        return Case(case.module.to(device), tuple(map(moved, case.inputs)), case.loss, kwargs)


class PointwiseBlock(nn.Module):
    """Memory-bound work only: two activations, a normalisation and a gated softmax."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x)
        y = torch.sin(y) * torch.cos(y)
        y = self.norm(y)
        return torch.softmax(y, dim=-1) * torch.tanh(y)


def _mlp() -> Case:
    module = nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )
    return Case(module, (torch.randn(128, 1024),), lambda y: y.sum())


def _pointwise() -> Case:
    module = PointwiseBlock(1024)
    with torch.no_grad():  # the defaults, ones and zeros, would hide a mistake in the affine part
        module.norm.weight.add_(torch.randn(1024), alpha=0.1)
        module.norm.bias.add_(torch.randn(1024), alpha=0.1)
    return Case(module, (torch.randn(2048, 1024, requires_grad=True),), lambda y: y.square().mean())


_TEXT = {"vocab_size": 1000, "max_position_embeddings": 128}
_ENCODER = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 1000, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 4}),
    "bert": ("BertForSequenceClassification", _TEXT | _ENCODER | {"intermediate_size": 1024}),
    "llama": ("LlamaForCausalLM", _TEXT | _ENCODER | {"intermediate_size": 688}),
    "distilbert": (
        "DistilBertForSequenceClassification",
        _TEXT | {"dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024},
    ),
    "vit": (
        "ViTForImageClassification",
        {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768}
        | {"image_size": 96, "patch_size": 16, "num_labels": 10},
    ),
    "resnet": (
        "ResNetForImageClassification",
        {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic", "num_labels": 10},
    ),
    "mobilenet": ("MobileNetV2ForImageClassification", {"image_size": 96, "num_labels": 10}),
}


def transformer(name: str, **changes: Any) -> Case:
    """An architecture of Hugging Face in training mode, with random weights and inputs."""
    import transformers

    transformers.logging.set_verbosity_error()
    architecture, settings = _SETTINGS[name]
    kind = getattr(transformers, architecture)
    config = kind.config_class(**(settings | changes))
    config.use_cache = False  # keys and values of all layers would be results, which training does not use
    if name in ("gpt2", "llama"):
        ids = torch.randint(0, 1000, (4, 128))
        inputs = {"input_ids": ids, "labels": ids}
    elif name in ("bert", "distilbert"):
        inputs = {"input_ids": torch.randint(0, 1000, (8, 128)), "labels": torch.randint(0, 2, (8,))}
    else:
        inputs = {"pixel_values": torch.randn(4, 3, 96, 96), "labels": torch.randint(0, 10, (4,))}
    if name not in ("gpt2", "llama"):
        config.problem_type = "single_label_classification"  # else the first step finds out and sets it
    return Case(kind(config).train(), (), lambda output: output.loss, inputs)


def _transformer(name: str, what: str, random: bool = True) -> Model:
    return Model(name, what, lambda: transformer(name), random)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("mlp", "1024-2048-2048-10, ReLU, batch 128", _mlp),
        Model("pointwise", "gelu, sin·cos, layer_norm, softmax·tanh on 2048×1024", _pointwise),
        _transformer("gpt2", "GPT-2, 4 layers of 256, 4×128 tokens"),
        _transformer("bert", "BERT, 4 layers of 256, 8×128 tokens"),
        _transformer("llama", "Llama, 4 layers of 256, 4×128 tokens", random=False),
        _transformer("distilbert", "DistilBERT, 4 layers of 256, 8×128 tokens"),
        _transformer("vit", "ViT, 4 layers of 192, 4×3×96×96", random=False),
        _transformer("resnet", "ResNet, 8 basic blocks, 4×3×96×96", random=False),
        _transformer("mobilenet", "MobileNetV2, 4×3×96×96"),
    )
}


# The same for a GPU: of the sizes people train, in eager's best way, so without dropout.

_LARGE_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "bert": ("BertForMaskedLM", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
        | {"intermediate_size": 2816, "vocab_size": 32000},
    ),
    "vit": ("ViTForImageClassification", {}),
    "resnet": ("ResNetForImageClassification", {}),
}


def _large(name: str) -> Case:
    import transformers

    transformers.logging.set_verbosity_error()
    architecture, settings = _LARGE_SETTINGS[name]
    kind = getattr(transformers, architecture)
    config = kind.config_class(**settings)
    config.use_cache = False
    if name in ("vit", "resnet"):
        config.problem_type = "single_label_classification"
        inputs = {"pixel_values": torch.randn(64, 3, 224, 224), "labels": torch.randint(0, 2, (64,))}
    else:
        ids = torch.randint(0, config.vocab_size, (8, 512))
        inputs = {"input_ids": ids, "labels": ids}
    return Case(kind(config).train(), (), lambda output: output.loss, inputs)


def _large_pointwise() -> Case:
    case = _pointwise()
    return Case(case.module, (torch.randn(32768, 1024, requires_grad=True),), case.loss)


def _large_model(name: str, what: str) -> Model:
    return Model(name, what, lambda: _large(name))


LARGE_MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        MODELS["mlp"],
        Model("pointwise", "gelu, sin·cos, layer_norm, softmax·tanh on 32768×1024", _large_pointwise),
        _large_model("gpt2", "GPT-2, 12 layers of 768, 8×512 tokens"),
        _large_model("bert", "BERT for masked words, 12 layers of 768, 8×512 tokens"),
        _large_model("llama", "Llama, 8 layers of 1024, 8×512 tokens"),
        _large_model("resnet", "ResNet-50, 64×3×224×224"),
        _large_model("vit", "ViT-B/16, 64×3×224×224"),
    )
}
FLOAT32_ON_GPUS = ("mlp", "pointwise")  # the others are in bfloat16 there, unless a dtype is asked for


# For inference: what people deploy, at sizes where a call takes a few milliseconds.

_SMALL_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": (
        "Qwen3ForCausalLM",
        _TEXT | _ENCODER | {"num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768, "use_cache": False},
    ),
    "convnext": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 2, 2], "image_size": 96, "num_labels": 10},
    ),
    "swin": (
        "SwinForImageClassification",
        {"embed_dim": 48, "depths": [2, 2, 2], "num_heads": [2, 4, 8], "window_size": 6}
        | {"image_size": 96, "num_labels": 10},
    ),
}
_CLIP_PART = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 3, "num_attention_heads": 3}


def _small(name: str) -> Case:
    import transformers

    transformers.logging.set_verbosity_error()
    architecture, settings = _SMALL_SETTINGS[name]
    kind = getattr(transformers, architecture)
    text = name == "qwen3"
    inputs = {"input_ids": torch.randint(0, 1000, (4, 64))} if text else {"pixel_values": torch.randn(4, 3, 96, 96)}
    return Case(kind(kind.config_class(**settings)), (), lambda output: output.logits.sum(), inputs)


def _clip() -> Case:
    import transformers

    transformers.logging.set_verbosity_error()
    words = {"vocab_size": 1000, "max_position_embeddings": 32, "eos_token_id": 999, "bos_token_id": 998}
    pictures = {"image_size": 96, "patch_size": 16}
    settings: dict[str, Any] = {"text_config": _CLIP_PART | words, "vision_config": _CLIP_PART | pictures}
    module = transformers.CLIPModel(transformers.CLIPConfig(**settings, projection_dim=128))
    inputs = {"input_ids": torch.randint(0, 999, (4, 32)), "pixel_values": torch.randn(4, 3, 96, 96)}
    return Case(module, (), lambda output: output.logits_per_image.sum(), inputs)


def _encoder_decoder() -> Case:
    module = nn.Transformer(64, 4, 2, 2, 256, batch_first=True)
    return Case(module, (torch.randn(4, 32, 64), torch.randn(4, 32, 64)), lambda output: output.sum())


SMALL_MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("transformer64", "nn.Transformer, 2 + 2 layers of 64, 4×32 and 4×32 tokens", _encoder_decoder),
        Model("qwen3", "Qwen3, 4 layers of 256, 4×64 tokens", lambda: _small("qwen3")),
        Model("convnext", "ConvNeXt, 8 blocks of 48 to 384, 4×3×96×96", lambda: _small("convnext")),
        Model("swin", "Swin, 6 blocks of 48 to 192, 4×3×96×96", lambda: _small("swin")),
        Model("clip", "CLIP, 3 + 3 layers of 192, 4×32 tokens and 4×3×96×96", _clip),
    )
}


def _prompt() -> Case:
    case = transformer("gpt2")
    return Case(case.module, (), case.loss, {"input_ids": case.kwargs["input_ids"][:1, :16].clone()})


START_MODELS: dict[str, Model] = {  # for what a process takes until its first result
    "gpt2-prompt": Model("gpt2-prompt", "GPT-2, 4 layers of 256, a prompt of 16 tokens", _prompt)
}


def models_for(device: str) -> dict[str, Model]:
    return MODELS if device == "cpu" else LARGE_MODELS


def model_named(name: str, device: str = "cpu") -> Model:
    """A model by its name, or with the first samples of its batch only: `"resnet/1"`."""
    plain, _, batch = name.partition("/")
    model = (models_for(device) | (SMALL_MODELS | START_MODELS if device == "cpu" else {}))[plain]
    if not batch:
        return model

    def make() -> Case:
        return model.make().first(int(batch))

    return Model(name, f"{model.what}, the first {batch} of the batch", make, model.random)
