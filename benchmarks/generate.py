"""Hugging Face's `generate`, eager and compiled: the tokens, the compilations, the time per token.

    python -m benchmarks.generate [--models gpt2 llama …] [--modes greedy static …] [--tokens 24] [--wrap forward]

Each model is small and has random float32 weights. Each mode generates from prompts of different lengths, then from the
first again. One line per model and mode: whether the tokens equal eager's, graphs compiled in each call, processor
seconds of the first call, tokens per second of eager and of smelt when the lengths repeat, and what else was counted.
The last lines list models and modes with other tokens, with graph breaks and with more than three graphs.
`--without-rates` skips the tokens per second.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import smelt

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


class _Stream:
    """What `generate` hands tokens to one by one."""

    def __init__(self) -> None:
        self.tokens: list[torch.Tensor] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.tokens.append(tokens.reshape(-1))

    def end(self) -> None: ...


def _padded(inputs: Settings) -> Settings:
    if "attention_mask" in inputs:
        inputs["attention_mask"][0, :3] = 0
        inputs["input_ids"][0, :3] = 0
    return inputs


def _quantized(inputs: Settings) -> Settings:
    return inputs | {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}


MODES: dict[str, Callable[[Settings], Settings]] = {
    "greedy": lambda inputs: inputs,
    "padded": _padded,
    "sample": lambda inputs: inputs | {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8},
    "beams": lambda inputs: inputs | {"num_beams": 3},
    "beam_sample": lambda inputs: inputs | {"num_beams": 2, "do_sample": True},
    "streamed": lambda inputs: inputs | {"streamer": _Stream()},
    "static": lambda inputs: inputs | {"cache_implementation": "static"},
    "static_padded": lambda inputs: _padded(inputs) | {"cache_implementation": "static"},
    "offloaded": lambda inputs: inputs | {"cache_implementation": "offloaded"},
    "offloaded_static": lambda inputs: inputs | {"cache_implementation": "offloaded_static"},
    "quantized": _quantized,
    "uncached": lambda inputs: inputs | {"use_cache": False},
    "assisted": lambda inputs: inputs | {"assistant_model": True},
    "lookup": lambda inputs: inputs | {"prompt_lookup_num_tokens": 3},
    "chunked": lambda inputs: inputs | {"prefill_chunk_size": 4},
}
ONE_ROW = ("streamed", "assisted", "lookup")
COUNTED = ("graphs", "recompiles", "graph_breaks", "sizes_compiled", "sizes_refused", "eager_graphs", "frames_skipped")


def generate(model: Any, kind: str, mode: str, tokens: int, length: int) -> tuple[torch.Tensor, float]:
    """The tokens, and the processor seconds they took."""
    arguments = MODES[mode](prompt(kind, length, 1 if mode in ONE_ROW else 2))
    if "assistant_model" in arguments:
        arguments["assistant_model"] = model.assistant[0]
    arguments |= {"max_new_tokens": tokens, "eos_token_id": None, "pad_token_id": 0}
    arguments.setdefault("do_sample", False)
    torch.manual_seed(length)
    start = time.process_time()
    output: torch.Tensor = model.generate(**arguments)
    return output, time.process_time() - start


def compiled(model: Any, wrap: str) -> Any:
    if wrap == "model":
        return smelt.compile(model)
    model.forward = smelt.compile(model.forward)
    return model


def counted() -> Settings:
    return {name: smelt.counters[name] for name in COUNTED}


MOST_GRAPHS = 3
FAULTS = ("other tokens", "graph breaks", f"more than {MOST_GRAPHS} graphs")


def measure(
    name: str, mode: str, tokens: int, lengths: tuple[int, ...], wrap: str, rates: bool
) -> tuple[str, list[str]]:
    """One line of the table, and which of `FAULTS` it shows."""
    smelt.reset()
    chosen = MODELS[name]
    eager, ours = chosen.build(), chosen.build()
    for model in (eager, ours):
        model.assistant = [chosen.build()]  # in a list: no submodule
    expected = [generate(eager, chosen.prompt, mode, tokens, length) for length in lengths]
    ours = compiled(ours, wrap)
    results, counts = [], []
    for length in lengths:
        results.append(generate(ours, chosen.prompt, mode, tokens, length))
        counts.append(counted())
    again = generate(ours, chosen.prompt, mode, tokens, lengths[0])
    same = all(torch.equal(a[0], b[0]) for a, b in zip([*expected, expected[0]], [*results, again], strict=True))
    last = counted()
    totals = [0, *(each["graphs"] for each in (*counts, last))]
    graphs = "+".join(str(after - before) for before, after in itertools.pairwise(totals))
    speed = ""
    if rates:
        seconds = [generate(model, chosen.prompt, mode, tokens, lengths[-1])[1] for model in (eager, ours)]
        speed = f"tokens/s {tokens / seconds[0]:6.0f} → {tokens / seconds[1]:6.0f}  "
    others = " ".join(f"{key}={last[key]}" for key in COUNTED[1:] if last[key])
    verdict = "same" if same else "OTHER TOKENS"
    shown = (not same, last["graph_breaks"] > 0, last["graphs"] > MOST_GRAPHS)
    line = f"{name:12} {mode:16} {verdict:12} graphs {graphs:8} first {results[0][1]:6.2f} s  {speed}{others}"
    return line, [fault for fault, is_shown in zip(FAULTS, shown, strict=True) if is_shown]


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(prog="benchmarks.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--lengths", type=int, nargs="+", default=[7, 11])
    parser.add_argument("--wrap", choices=("forward", "model"), default="forward")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-rates", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)
    rows, faults = 0, dict[str, list[str]]()
    for name in args.models:
        for mode in args.modes:
            reason = _why_eager_refuses(name, mode)
            if reason:
                print(f"{name:12} {mode:16} eager refuses: {reason}", flush=True)
                continue
            lengths, rates = tuple(args.lengths), not args.without_rates
            line, shown = measure(name, mode, args.tokens, lengths, args.wrap, rates)
            print(line, flush=True)
            rows += 1
            for fault in shown:
                faults.setdefault(fault, []).append(f"{name} {mode}")
    print(f"{rows} rows")
    for fault in FAULTS:
        print(f"{fault}: {', '.join(faults.get(fault, ['none']))}")


def _why_eager_refuses(name: str, mode: str) -> str:
    model = MODELS[name].build()
    model.assistant = [MODELS[name].build()]
    try:
        generate(model, MODELS[name].prompt, mode, 2, 5)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return ""


if __name__ == "__main__":
    main()
