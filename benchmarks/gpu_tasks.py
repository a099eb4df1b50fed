"""The programs of `benchmarks.gpu_steps`: training steps, whole steps with an optimizer, and inference on a GPU.

    task = TASKS["gpt2"]
    program = task.build()            # a model and its inputs on the GPU
    step = program(smelt.compile)     # the step with its compiled part compiled so
    step()                            # runs it; returns the loss, or the first result

Every program makes the same numbers for every compiler: weights and inputs are drawn once, and a step that changes its
model works on a copy of its own.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models import FLOAT32_ON_GPUS, LARGE_MODELS, SEED, Case

Compiler = Callable[[Any], Any]
Step = Callable[[], torch.Tensor]
Program = Callable[[Compiler], Step]


@dataclass(frozen=True, slots=True)
class Task:
    """One program: its name, what it computes, and how to build it."""

    name: str
    description: str
    build: Callable[[], Program]


# Training: forward and backward, in bfloat16 unless the model is one of FLOAT32_ON_GPUS.


def _training(name: str) -> Program:
    return training_of(LARGE_MODELS[name].build_on("cuda", _dtype(name)))


def training_of(case: Case) -> Program:
    """Forward and backward; the loss of a case may be outside the compiled part."""
    parameters = list(case.module.parameters())

    def program(compiler: Compiler) -> Step:
        model = compiler(case.module)

        def step() -> torch.Tensor:
            for parameter in parameters:
                parameter.grad = None
            loss = case.loss(case.call(model))
            loss.backward()
            return loss.detach()

        return step

    return program


def _dtype(name: str) -> torch.dtype:
    return torch.float32 if name in FLOAT32_ON_GPUS else torch.bfloat16


def _hugging_face(architecture: str, inputs: Callable[[Any], dict[str, torch.Tensor]], **settings: Any) -> Program:
    """Training of a Hugging Face model with random weights in bfloat16, without dropout where the settings say so."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(SEED)
    kind = getattr(transformers, architecture)
    config = kind.config_class(**settings)
    config.use_cache = False
    with torch.device("cuda"):
        module = kind(config).train().to(torch.bfloat16)

    def converted(x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda", torch.bfloat16 if x.is_floating_point() else x.dtype)

    kwargs = {name: converted(value) for name, value in inputs(config).items()}
    return training_of(Case(module, (), lambda output: output.loss, kwargs))


def _tokens(config: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, config.vocab_size, (8, 512))
    return {"input_ids": ids, "labels": ids}


def _images(config: Any) -> dict[str, torch.Tensor]:
    config.problem_type = "single_label_classification"
    return {"pixel_values": torch.randn(64, 3, 224, 224), "labels": torch.randint(0, config.num_labels, (64,))}


def _qwen3() -> Program:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
    return _hugging_face("Qwen3ForCausalLM", _tokens, **sizes, head_dim=64, intermediate_size=3072, vocab_size=32000)


def _t5() -> Program:
    sizes = {"d_model": 768, "d_ff": 3072, "num_layers": 6, "num_heads": 12, "dropout_rate": 0.0}
    return _hugging_face("T5ForConditionalGeneration", _tokens, **sizes, decoder_start_token_id=0)


def _whisper() -> Program:
    def sounds(config: Any) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, config.vocab_size, (8, 128))
        return {"input_features": torch.randn(8, config.num_mel_bins, 3000), "labels": ids}

    sizes = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6}
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    widths = {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "dropout": 0.0}
    return _hugging_face("WhisperForConditionalGeneration", sounds, **sizes, **heads, **widths)


def _transformer() -> Program:
    torch.manual_seed(SEED)
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to("cuda", torch.bfloat16)
    x = torch.randn(16, 512, 768).to("cuda", torch.bfloat16)
    return training_of(Case(module, (x,), lambda y: y.float().square().mean()))


# Whole steps: what people write around a model of GPT-2's size in float32.

_TRAINED_TOKENS = (8, 1024)


def _gpt2_in_training() -> tuple[Any, torch.Tensor]:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(SEED)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    with torch.device("cuda"):
        model = transformers.GPT2LMHeadModel(config).train()
    return model, torch.randint(0, config.vocab_size, _TRAINED_TOKENS).cuda()


def _optimizer_step(model: Any, ids: torch.Tensor, call: Callable[..., Any], optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss: torch.Tensor = call(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def _whole_step(model_alone: bool) -> Program:
    """Autocast, clipping and fused AdamW; the compiled part is the whole step, or the model alone."""
    original, ids = _gpt2_in_training()

    def program(compiler: Compiler) -> Step:
        model = copy.deepcopy(original)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        if model_alone:
            call = compiler(model)
            return lambda: _optimizer_step(model, ids, call, optimizer)

        def step() -> torch.Tensor:
            return _optimizer_step(model, ids, model, optimizer)

        compiled: Step = compiler(step)
        return compiled

    return program


# Inference


def _inference(model: Any, *args: torch.Tensor, **kwargs: Any) -> Program:
    def program(compiler: Compiler) -> Step:
        compiled = compiler(model)

        def step() -> torch.Tensor:
            with torch.no_grad():
                logits: torch.Tensor = compiled(*args, **kwargs).logits
            return logits

        return step

    return program


def _frozen(architecture: str, **settings: Any) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(SEED)
    kind = getattr(transformers, architecture)
    with torch.device("cuda"):
        return kind(kind.config_class(**settings)).eval().requires_grad_(False).to(torch.bfloat16)


def _gpt2_prompt() -> Program:
    model = _frozen("GPT2LMHeadModel", use_cache=False)
    return _inference(model, torch.randint(0, 50257, (1, 128)).cuda())


_LLAMA = {"hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8}
_LLAMA_SIZES = _LLAMA | {"intermediate_size": 2816, "vocab_size": 32000}


def _llama_prompt() -> Program:
    model = _frozen("LlamaForCausalLM", **_LLAMA_SIZES, use_cache=False)
    return _inference(model, torch.randint(0, 32000, (8, 512)).cuda())


def _llama_token() -> Program:
    """One token after a prompt of 32 with a static cache of 512. The cache counts its tokens, so it is set back."""
    from transformers import StaticCache

    model = _frozen("LlamaForCausalLM", **_LLAMA_SIZES)
    prompt, token = torch.randint(0, 32000, (1, 32)).cuda(), torch.randint(0, 32000, (1, 1)).cuda()

    def program(compiler: Compiler) -> Step:
        cache = StaticCache(config=model.config, max_cache_len=512)
        with torch.no_grad():
            model(prompt, past_key_values=cache)
        counters = (getattr(layer, "cumulative_length", None) for layer in cache.layers)
        counts = [count for count in counters if isinstance(count, torch.Tensor)]
        lengths = [count.clone() for count in counts]
        compiled = compiler(model)

        def step() -> torch.Tensor:
            with torch.no_grad():
                if counts:
                    torch._foreach_copy_(counts, lengths)
                logits: torch.Tensor = compiled(token, past_key_values=cache).logits
            return logits

        return step

    return program


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *(Task(name, model.what, lambda name=name: _training(name)) for name, model in LARGE_MODELS.items()),  # type: ignore[misc]
        Task("gpt2-step", "GPT-2, 8×1024, autocast, clipping, fused AdamW, as one step", lambda: _whole_step(False)),
        Task("gpt2-model-step", "the same step with the model alone compiled", lambda: _whole_step(True)),
        Task("gpt2-infer", "GPT-2, inference, 1×128 tokens", _gpt2_prompt),
        Task("llama-token", "Llama, 16 layers of 1024, one token, static cache", _llama_token),
        Task("llama-infer", "Llama, 16 layers of 1024, inference, 8×512 tokens", _llama_prompt),
        Task("qwen3", "Qwen3, 8 layers of 1024, 8×512 tokens", _qwen3),
        Task("t5", "T5, 6 + 6 layers of 768, 8×512 tokens", _t5),
        Task("whisper", "Whisper, 6 + 6 layers of 512, 8×3000 frames", _whisper),
        Task(
            "convnext",
            "ConvNeXt-T, 64×3×224×224",
            lambda: _hugging_face("ConvNextForImageClassification", _images),
        ),
        Task(
            "swin",
            "Swin-T, 64×3×224×224",
            lambda: _hugging_face("SwinForImageClassification", _images, drop_path_rate=0.0),
        ),
        Task("transformer", "nn.TransformerEncoder, 8 layers of 768, 16×512 tokens", _transformer),
    )
}
