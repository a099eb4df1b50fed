"""Small models of many families to export: each a module in eval mode, and its arguments."""

from collections.abc import Callable
from typing import Any

import torch

Case = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]

_TEXT: dict[str, Any] = {"vocab_size": 128, "max_position_embeddings": 32}
_ENCODER: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_IDS: dict[str, Any] = {"use_cache": False}


def _mlp() -> Case:
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    return module.eval(), (torch.randn(3, 16),), {}


def _built(architecture: str, settings: dict[str, Any]) -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    kind = getattr(transformers, architecture)
    model: torch.nn.Module = kind(kind.config_class(**settings)).eval()
    model.config.use_cache = False  # type: ignore[union-attr]
    model.config.return_dict = True  # type: ignore[union-attr]
    return model


def _text(architecture: str, settings: dict[str, Any], **more: Callable[[], torch.Tensor]) -> Callable[[], Case]:
    def make() -> Case:
        inputs = {"input_ids": torch.randint(0, 128, (2, 12))} | {name: each() for name, each in more.items()}
        return _built(architecture, settings), (), inputs

    return make


def _image(architecture: str, settings: dict[str, Any], size: int = 32) -> Callable[[], Case]:
    return lambda: (_built(architecture, settings), (), {"pixel_values": torch.randn(2, 3, size, size)})


def _whisper() -> Case:
    settings = {
        "vocab_size": 128, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
        "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    model = _built("WhisperForConditionalGeneration", settings)
    features, ids = torch.randn(2, 8, 32), torch.randint(0, 128, (2, 6))
    return model, (), {"input_features": features, "decoder_input_ids": ids}


def _t5() -> Case:
    settings = {
        "vocab_size": 128, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
        "decoder_start_token_id": 0, "use_cache": False,
    }  # fmt: skip
    model = _built("T5ForConditionalGeneration", settings)
    return model, (), {"input_ids": torch.randint(0, 128, (2, 9)), "decoder_input_ids": torch.randint(0, 128, (2, 5))}


_GPT2 = {"vocab_size": 128, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
_LLAMA = _TEXT | _ENCODER | {"intermediate_size": 48, "num_key_value_heads": 1}
_VIT = _ENCODER | {"intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 5}
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 5}
_CONVNEXT = {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}

MODELS: dict[str, Callable[[], Case]] = {
    "mlp": _mlp,
    "gpt2": _text("GPT2LMHeadModel", _GPT2),
    "bert": _text("BertForSequenceClassification", _TEXT | _ENCODER | {"intermediate_size": 64}),
    "llama": _text("LlamaForCausalLM", _LLAMA),
    "t5": _t5,
    "whisper": _whisper,
    "vit": _image("ViTForImageClassification", _VIT),
    "resnet": _image("ResNetForImageClassification", _RESNET),
    "mobilenet": _image("MobileNetV2ForImageClassification", {"depth_multiplier": 0.25, "num_labels": 5}, 64),
    "convnext": _image("ConvNextForImageClassification", _CONVNEXT),
}
