"""Small models with random float32 weights that generate text, and their prompts.

    MODELS["llama"].build()   →   a LlamaForCausalLM of two layers of 32
    prompt("text", 7, 2)      →   input_ids and attention_mask of two prompts of seven tokens

Weights are drawn anew for each model, the same each time.
"""

from dataclasses import dataclass
from typing import Any

import torch

Settings = dict[str, Any]
VOCABULARY = 200
IMAGE_TOKEN = 199
SMALL: Settings = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT: Settings = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 128,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
BOTH_WAYS: Settings = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
    "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
VISION: Settings = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
SLIDING = {"sliding_window": 8}


@dataclass(frozen=True)
class Model:
    """How to build a model, and which kind of prompt it takes."""

    name: str
    settings: Settings
    prompt: str = "text"

    def build(self) -> Any:
        import transformers

        architecture = getattr(transformers, self.name)
        torch.manual_seed(0)
        model = architecture(architecture.config_class(**(SMALL | self.settings))).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # initial weights repeat one token
                if parameter.dim() > 1:
                    parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
        return model


MODELS: dict[str, Model] = {
    "gpt2": Model("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "llama": Model("LlamaForCausalLM", GROUPED),
    "qwen3": Model("Qwen3ForCausalLM", GROUPED),
    "gemma3": Model("Gemma3ForCausalLM", GROUPED | SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}),
    "mistral": Model("MistralForCausalLM", GROUPED | SLIDING),
    "phi": Model("PhiForCausalLM", TEXT),
    "phi3": Model("Phi3ForCausalLM", TEXT | {"num_key_value_heads": 2}),
    "olmoe": Model("OlmoeForCausalLM", EXPERTS | {"num_experts": 4}),
    "mixtral": Model("MixtralForCausalLM", EXPERTS | {"num_local_experts": 4}),
    "gpt_oss": Model("GptOssForCausalLM", EXPERTS | SLIDING | {"num_local_experts": 4}),
    "deepseek_v3": Model(
        "DeepseekV3ForCausalLM",
        TEXT
        | {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
        | {"v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
        | {"first_k_dense_replace": 1, "moe_intermediate_size": 16},
    ),
    "opt": Model(
        "OPTForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32}
        | {"max_position_embeddings": 128},
    ),
    "gptj": Model("GPTJForCausalLM", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 128}),
    "bert": Model("BertLMHeadModel", TEXT | {"is_decoder": True}),
    "gemma2": Model("Gemma2ForCausalLM", GROUPED | {"sliding_window": 128}),
    "bloom": Model("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": Model("FalconForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "gpt_neox": Model("GPTNeoXForCausalLM", TEXT),
    "mamba": Model("MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "rwkv": Model(
        "RwkvForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 48}
        | {"context_length": 128},
    ),
    "qwen3_next": Model(
        "Qwen3NextForCausalLM",
        EXPERTS
        | {"num_experts": 4, "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
        | {"layer_types": ["linear_attention", "full_attention"]},
    ),
    "t5": Model(
        "T5ForConditionalGeneration",
        {"d_model": 32, "num_layers": 2, "d_kv": 8, "num_heads": 4, "d_ff": 48, "decoder_start_token_id": 1},
        "encoded",
    ),
    "bart": Model("BartForConditionalGeneration", BOTH_WAYS, "encoded"),
    "whisper": Model(
        "WhisperForConditionalGeneration",
        BOTH_WAYS
        | {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 128}
        | {"suppress_tokens": None, "begin_suppress_tokens": None},
        "sound",
    ),
    "llava": Model(
        "LlavaForConditionalGeneration",
        {"text_config": GROUPED | SMALL | {"model_type": "llama"}, "image_token_index": IMAGE_TOKEN}
        | {"vision_config": VISION | {"model_type": "clip_vision_model"}},
        "image",
    ),
    "paligemma": Model(
        "PaliGemmaForConditionalGeneration",
        {"text_config": GROUPED | SMALL | {"model_type": "gemma"}, "image_token_id": IMAGE_TOKEN}
        | {"vision_config": VISION | {"projection_dim": 32}, "projection_dim": 32},
        "image",
    ),
}


def prompt(kind: str, length: int, rows: int) -> Settings:
    """The inputs of a call: `rows` prompts of `length` tokens."""
    drawn = torch.Generator().manual_seed(length)
    ids = torch.randint(3, 190, (rows, length), generator=drawn)
    mask = torch.ones_like(ids)
    if kind == "sound":
        return {"input_features": torch.randn(rows, 8, 32, generator=drawn)}
    if kind == "image":
        image = torch.full((rows, 16), IMAGE_TOKEN)
        ids, mask = torch.cat([image, ids], 1), torch.cat([torch.ones_like(image), mask], 1)
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "pixel_values": torch.randn(rows, 3, 16, 16, generator=drawn),
        }
    return {"input_ids": ids, "attention_mask": mask}
