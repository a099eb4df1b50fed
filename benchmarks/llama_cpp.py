"""`smelt.generate` on the CPU beside llama.cpp, with one GGUF file: decoding, and a prefill of 512 tokens.

    cmake -G Ninja -S llama.cpp -B build -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_COMMON=OFF …
    g++ -O2 -Illama.cpp/include -Illama.cpp/ggml/include benchmarks/llama_cpp_peer.cpp -o peer build/src/libllama.a …
    python -m benchmarks.llama_cpp --peer ./peer [--sizes 110m 1b] [--formats bf16 f16 q8_0 q4_0]
        [--activations f32] [--bytes] [--threads 2]

Llama-like models with random weights. One line per model and format: tokens per second of smelt and of llama.cpp, the
bytes of weights that smelt reads per second beside a plain read, and how many of the first greedy tokens agree:
llama.cpp rounds activations to 8 bits where weights are quantized, and smelt does so with `--bytes`.
"""

import argparse
import json
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import smelt
from benchmarks.quantized import READ_BYTES
from smelt.quantization import QuantizedLinear, QuantizedTensor, read_gguf

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    "110m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}  # fmt: skip
VOCABULARY = 32000
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
PROMPT = [(37 * place + 11) % 1000 for place in range(32)]
ROUNDS = 3


def build(size: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_key_value_heads": SIZES[size]["num_attention_heads"], **SIZES[size]}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=2048, rms_norm_eps=1e-5, **sizes)
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.fill_(1)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are no parameters
    return model


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj` → `blk.3.ffn_up.weight`."""
    if name.startswith("model.layers."):
        number, inner = name.removeprefix("model.layers.").split(".", 1)
        return f"blk.{number}.{NAMES[inner]}.weight"
    return f"{NAMES[name]}.weight"


def rotated_rows(weight: Tensor, heads: int, back: bool = False) -> Tensor:
    """The rows of a query or key layer in the order of GGUF files, or back."""
    halves = (heads, -1, 2) if back else (heads, 2, -1)
    return weight.view(*halves, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def encoded(weight: Tensor, form: str) -> bytes:
    if form in FLOATS:
        return weight.to(FLOATS[form]).contiguous().view(torch.uint8).numpy().tobytes()
    blocks = weight.reshape(-1, 32)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = (largest.abs() / 127 if form == "q8_0" else largest / -8).half()
    integers = blocks / scale.float().where(scale != 0, 1)
    if form == "q8_0":
        packed = integers.round().clamp(-127, 127).to(torch.int8).view(torch.uint8)
    else:
        nibbles = (integers + 8.5).floor().clamp(0, 15).to(torch.uint8)
        packed = nibbles[:, :16] | nibbles[:, 16:] << 4
    return torch.cat([scale.view(torch.uint8), packed], 1).numpy().tobytes()


def write(model: Any, form: str, path: str) -> None:
    """A GGUF file of the model whose matrices are in a format."""
    config = model.config
    keys: dict[str, Any] = {
        "general.architecture": "llama", "llama.block_count": config.num_hidden_layers, "llama.context_length": 2048,
        "llama.embedding_length": config.hidden_size, "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": 10000.0, "llama.rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "llama.vocab_size": VOCABULARY, "tokenizer.ggml.model": "no_vocab",
    }  # fmt: skip
    head, data_bytes, parts = b"", 0, []
    for key, value in keys.items():
        kind, raw = (8, string(value)) if isinstance(value, str) else (4, struct.pack("<I", value)) if isinstance(
            value, int) else (6, struct.pack("<f", value))  # fmt: skip
        head += string(key) + struct.pack("<I", kind) + raw
    layers = [(name, module) for name, module in model.named_modules() if getattr(module, "weight", None) is not None]
    for name, module in layers:
        weight, inner = module.weight.detach(), name.rsplit(".", 1)[-1]
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(inner)
        if heads:
            weight = rotated_rows(weight, heads)
        kept = "f32" if weight.dim() == 1 else "f16" if "embed" in name and form not in FLOATS else form
        head += string(gguf_name(name)) + struct.pack("<I", weight.dim())
        head += struct.pack(f"<{weight.dim()}Q", *weight.shape[::-1]) + struct.pack("<IQ", TYPES[kept], data_bytes)
        parts.append(encoded(weight, kept))
        data_bytes += -(-len(parts[-1]) // 32) * 32
    start = b"GGUF" + struct.pack("<IQQ", 3, len(layers), len(keys)) + head
    with open(path, "wb") as file:
        file.write(start + b"\0" * (-len(start) % 32))
        for raw in parts:
            file.write(raw + b"\0" * (-len(raw) % 32))


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def load(model: Any, form: str, path: str, activations: torch.dtype, rounding: str | None) -> Any:
    """The model with the weights of the file, quantized ones as they are. `activations`: of quantized layers, which may
    be rounded."""
    config, tensors = model.config, read_gguf(path).tensors
    for name, module in list(model.named_modules()):
        if getattr(module, "weight", None) is None:
            continue
        weight, inner = tensors[gguf_name(name)], name.rsplit(".", 1)[-1]
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(inner)
        if isinstance(weight, QuantizedTensor):
            if heads:
                rows = torch.arange(weight.shape[0])[:, None]
                weight = weight.rows(rotated_rows(rows, heads, back=True).flatten())
            model.set_submodule(name, QuantizedLinear(weight, activations=rounding))
        else:
            module.weight = nn.Parameter(rotated_rows(weight, heads, back=True) if heads else weight, False)
    return model.to(FLOATS.get(form, activations))


def seconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def weight_bytes(model: Any) -> int:
    """Of the matrices that each token reads."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | QuantizedLinear)]
    return sum(t.nbytes for layer in layers for t in (*layer.parameters(), *layer.buffers()))


def measure(
    size: str, form: str, activations: str, rounding: str | None, peer: str, threads: int, tokens: int
) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = os.path.join(folder, "model.gguf")
        model = build(size)
        write(model, form, path)
        model = load(model, form, path, FLOATS[activations], rounding)
        ids, text = torch.tensor([PROMPT]), torch.full((1, 512), PROMPT[0])

        def generate(ids: Tensor, count: int) -> Tensor:
            return smelt.generate(model, ids, max_new_tokens=count, stop_tokens=[])

        first = seconds(lambda: generate(ids, 2))
        ours = generate(ids, tokens)[0, len(PROMPT) :].tolist()
        generate(text, 1), generate(ids, 1)
        memory = torch.zeros(READ_BYTES // 4, dtype=torch.int32)
        read = smelt.compile(lambda memory: memory.sum(dtype=torch.int32))
        read(memory)
        rounds = [
            (
                seconds(lambda: generate(ids, tokens)),
                seconds(lambda: generate(ids, 1)),
                seconds(lambda: generate(text, 1)),
                seconds(lambda: read(memory)),
            )
            for _ in range(ROUNDS)
        ]
        whole, prompt, prefill, reading = (min(each) for each in zip(*rounds, strict=True))
        decode = whole - prompt
        rate, bandwidth = (tokens - 1) / decode, weight_bytes(model) * (tokens - 1) / decode
        yield (
            f"{size:5} {form:5} smelt: decode {rate:7.1f} tokens/s = {bandwidth / 1e9:5.1f} GB/s, "
            f"{bandwidth * reading / READ_BYTES:.2f} of a plain read; prefill {512 / prefill:7.1f}; first {first:.1f} s"
        )
        if peer:
            command = [peer, path, str(threads), str(tokens - 1), *map(str, PROMPT)]
            result = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=200).stdout)
            theirs = result["tokens"]
            agreed = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            yield (
                f"{size:5} {form:5} peer:  decode {result['decode']:7.1f} tokens/s, prefill {result['prefill']:7.1f}; "
                f"smelt is {rate / result['decode']:.2f} and {512 / prefill / result['prefill']:.2f} times as fast; "
                f"first {agreed} of {len(ours)} tokens agree"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.llama_cpp", description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default="", help="the program of llama_cpp_peer.cpp")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["110m"])
    parser.add_argument("--formats", nargs="+", choices=list(TYPES), default=["bf16", "f16", "q8_0", "q4_0"])
    parser.add_argument("--activations", choices=list(FLOATS), default="f32", help="where weights are quantized")
    parser.add_argument("--bytes", action="store_true", help="round activations to 8 bits where weights are quantized")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=65)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rounding = "int8" if args.bytes else None
    for size in args.sizes:
        for form in args.formats:
            smelt.reset()
            for line in measure(size, form, args.activations, rounding, args.peer, args.threads, args.tokens):
                print(line, flush=True)


if __name__ == "__main__":
    main()
