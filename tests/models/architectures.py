"""Hugging Face architectures as data: how to build a small one, what to feed it, and the breaks it is known to have.

    Architecture("bert", "BertForSequenceClassification", TEXT, classified)   no break, neither training nor not

`training` and `evaluation` are the number of breaks of the first call in each mode (None: that mode is not run), and
`why` says what causes them. `inexact` says why results are close to eager's instead of equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Inputs = dict[str, Any]


def _ids(length: int = 8) -> torch.Tensor:
    return torch.randint(3, 50, (2, length))


def causal() -> Inputs:
    ids = _ids()
    return {"input_ids": ids, "labels": ids}


def masked() -> Inputs:
    ids = _ids()
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def classified() -> Inputs:
    ids = _ids()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1])}


def translated() -> Inputs:
    return {"input_ids": _ids(), "labels": _ids(6)}


def image(size: int = 16) -> Callable[[], Inputs]:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([0, 1])}


def sound() -> Inputs:
    return {"input_values": torch.randn(2, 160), "labels": torch.tensor([0, 1])}


def spectrogram() -> Inputs:
    return {"input_features": torch.randn(2, 8, 32), "labels": _ids(6)}


def image_and_text() -> Inputs:
    return {"input_ids": _ids(), "pixel_values": torch.randn(2, 3, 16, 16), "return_loss": True}


def image_in_text() -> Inputs:
    ids = torch.cat([torch.full((2, 16), 49), torch.randint(3, 49, (2, 8))], 1)
    images = {"pixel_values": torch.randn(2, 3, 16, 16), "token_type_ids": (ids != 49).long()}
    return images | {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@dataclass(frozen=True)
class Architecture:
    """One small model."""

    name: str
    model: str
    config: Inputs
    inputs: Callable[[], Inputs]
    fast: bool = False
    training: int | None = 0
    evaluation: int | None = 0
    why: str = ""
    inexact: str = ""

    def build(self, transformers: Any) -> torch.nn.Module:
        kind = getattr(transformers, self.model)
        model: torch.nn.Module = kind(kind.config_class(**(SMALL | self.config)))
        return model.to(torch.get_default_device())  # what is made of NumPy's arrays is on the host


SMALL: Inputs = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 3}
TEXT: Inputs = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 1, "head_dim": 8}
VISION: Inputs = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
BOTH_WAYS: Inputs = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "decoder_start_token_id": 1,
}  # fmt: skip
SOUND: Inputs = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "conv_dim": (8, 8),
    "conv_stride": (4, 2), "conv_kernel": (8, 4), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "classifier_proj_size": 8,
}  # fmt: skip
EXPERTS: Inputs = GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
DROPS_LAYERS = "which layers run is drawn from random numbers: a tensor decides, in every layer of every stack"

ARCHITECTURES: tuple[Architecture, ...] = (
    # text, decoders
    Architecture(
        "gpt2", "GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}, causal, fast=True
    ),
    Architecture("llama", "LlamaForCausalLM", GROUPED, masked, fast=True),
    Architecture("mistral", "MistralForCausalLM", GROUPED, causal),
    Architecture("qwen2", "Qwen2ForCausalLM", GROUPED, causal),
    Architecture("qwen3", "Qwen3ForCausalLM", GROUPED, causal),
    Architecture("gemma", "GemmaForCausalLM", GROUPED, causal),
    Architecture("gemma2", "Gemma2ForCausalLM", GROUPED, causal),
    Architecture("phi", "PhiForCausalLM", TEXT, causal),
    Architecture("gpt_neox", "GPTNeoXForCausalLM", TEXT, causal),
    Architecture(
        "gpt_neo",
        "GPTNeoForCausalLM",
        {
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 32,
        },
        causal,
    ),
    Architecture(
        "gptj", "GPTJForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "rotary_dim": 4}, causal
    ),
    Architecture(
        "bloom",
        "BloomForCausalLM",
        {"hidden_size": 16, "n_layer": 2, "n_head": 2},
        causal,
    ),
    Architecture(
        "falcon", "FalconForCausalLM", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}, causal
    ),
    Architecture(
        "opt",
        "OPTForCausalLM",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "max_position_embeddings": 32,
            "word_embed_proj_dim": 16,
        },
        causal,
    ),
    Architecture("stablelm", "StableLmForCausalLM", TEXT | {"num_key_value_heads": 1}, causal),
    Architecture("olmo2", "Olmo2ForCausalLM", GROUPED, causal),
    Architecture("starcoder2", "Starcoder2ForCausalLM", GROUPED, causal),
    Architecture("cohere", "CohereForCausalLM", GROUPED, causal),
    Architecture("glm", "GlmForCausalLM", GROUPED, causal),
    Architecture("granite", "GraniteForCausalLM", GROUPED, causal),
    Architecture("smollm3", "SmolLM3ForCausalLM", GROUPED, causal),
    # mixtures of experts
    Architecture("mixtral", "MixtralForCausalLM", EXPERTS | {"num_local_experts": 4}, causal),
    Architecture(
        "qwen2_moe", "Qwen2MoeForCausalLM", EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16}, causal
    ),
    Architecture("qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS | {"num_experts": 4}, causal),
    Architecture("olmoe", "OlmoeForCausalLM", EXPERTS | {"num_experts": 4}, causal),
    Architecture("gpt_oss", "GptOssForCausalLM", EXPERTS | {"num_local_experts": 4, "sliding_window": 6}, masked),
    Architecture(
        "llama4",
        "Llama4ForCausalLM",
        GROUPED | {"num_local_experts": 4, "intermediate_size_mlp": 32, "attention_chunk_size": 6},
        masked,
    ),
    Architecture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        TEXT
        | {
            "num_key_value_heads": 2,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 16,
        },
        masked,
    ),
    Architecture(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        EXPERTS
        | {
            "num_experts": 4,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
        masked,
    ),
    # state-space and other recurrences
    Architecture(
        "mamba",
        "MambaForCausalLM",
        {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        causal,
        training=3,
        evaluation=4,
        inexact="when compiled it takes the associative scan",
        why="associative_scan is a higher-order operator, which only Python can run",
    ),
    Architecture(
        "mamba2",
        "Mamba2ForCausalLM",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 4,
        },
        causal,
    ),
    Architecture(
        "rwkv",
        "RwkvForCausalLM",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "attention_hidden_size": 16,
            "intermediate_size": 32,
            "context_length": 32,
        },
        causal,
        evaluation=None,
        why="eager has no gradients in evaluation: it writes to what they need",
    ),
    # text, encoders
    Architecture("bert", "BertForSequenceClassification", TEXT, classified, fast=True),
    Architecture(
        "roberta", "RobertaForTokenClassification", TEXT, lambda: masked() | {"labels": torch.randint(0, 3, (2, 8))}
    ),
    Architecture(
        "distilbert",
        "DistilBertForMaskedLM",
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 32},
        masked,
        fast=True,
    ),
    Architecture("albert", "AlbertForMaskedLM", TEXT | {"embedding_size": 8}, masked),
    Architecture("electra", "ElectraForSequenceClassification", TEXT | {"embedding_size": 16}, classified),
    Architecture(
        "deberta",
        "DebertaForSequenceClassification",
        TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        classified,
        training=7,
        evaluation=7,
        why="sizes read out of tensors; indexing by a mask",
    ),
    Architecture("mpnet", "MPNetForSequenceClassification", TEXT, classified),
    Architecture("xlm_roberta", "XLMRobertaForMaskedLM", TEXT, masked),
    Architecture("modernbert", "ModernBertForSequenceClassification", TEXT, classified),
    Architecture("xlnet", "XLNetLMHeadModel", {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}, masked),
    # text, encoder and decoder
    Architecture(
        "t5",
        "T5ForConditionalGeneration",
        {"d_model": 16, "num_layers": 2, "d_kv": 8, "num_heads": 2, "d_ff": 32, "decoder_start_token_id": 1},
        translated,
        fast=True,
    ),
    Architecture("bart", "BartForConditionalGeneration", BOTH_WAYS, translated),
    Architecture("pegasus", "PegasusForConditionalGeneration", BOTH_WAYS, translated),
    Architecture("marian", "MarianMTModel", BOTH_WAYS, translated),
    # vision
    Architecture("vit", "ViTForImageClassification", VISION, image(), fast=True),
    Architecture("deit", "DeiTForImageClassification", VISION, image()),
    Architecture("beit", "BeitForImageClassification", VISION, image()),
    Architecture("dinov2", "Dinov2ForImageClassification", VISION, image()),
    Architecture(
        "resnet",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        image(32),
        fast=True,
    ),
    Architecture(
        "convnext",
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        image(32),
    ),
    Architecture(
        "swin",
        "SwinForImageClassification",
        {"embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 2, "image_size": 16, "patch_size": 2},
        image(),
    ),
    Architecture(
        "mobilenet_v2", "MobileNetV2ForImageClassification", {"image_size": 32, "depth_multiplier": 0.25}, image(32)
    ),
    Architecture(
        "regnet",
        "RegNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4},
        image(32),
    ),
    Architecture(
        "segformer",
        "SegformerForImageClassification",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "sr_ratios": [2, 1],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 8,
        },
        image(32),
    ),
    # sound
    Architecture(
        "wav2vec2",
        "Wav2Vec2ForSequenceClassification",
        SOUND,
        sound,
        training=3,
        evaluation=1,
        why="requires_grad is set on the input; " + DROPS_LAYERS + "; a cached function between writes",
    ),
    Architecture(
        "hubert",
        "HubertForSequenceClassification",
        SOUND,
        sound,
        training=3,
        evaluation=1,
        why="requires_grad is set on the input; " + DROPS_LAYERS + "; a cached function between writes",
    ),
    Architecture(
        "whisper",
        "WhisperForConditionalGeneration",
        BOTH_WAYS
        | {
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        spectrogram,
    ),
    # images and text
    Architecture(
        "clip",
        "CLIPModel",
        {"text_config": TEXT | SMALL | {"eos_token_id": 49}, "vision_config": VISION, "projection_dim": 8},
        image_and_text,
        fast=True,
    ),
    Architecture(
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        {
            "text_config": GROUPED | SMALL | {"model_type": "gemma"},
            "vision_config": VISION | {"projection_dim": 16},
            "image_token_id": 49,
            "projection_dim": 16,
        },
        image_in_text,
    ),
    Architecture("siglip", "SiglipModel", {"text_config": TEXT | SMALL, "vision_config": VISION}, image_and_text),
)
