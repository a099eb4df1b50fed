"""`smelt.generate` beside Hugging Face's `generate`: tokens per second at batch 1, and the tokens.

    python -m benchmarks.generation [--device cuda] [--sizes 16x1024 1b] [--ways eager smelt …] [--tokens 128]

Llama-like models with random weights, in bfloat16 on a GPU and float32 on the CPU. One line per model and way: seconds
of the first call, tokens per second of the median of three later calls (the prompt included), the bytes of weights read
per second, and whether the tokens equal eager's in float32.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import smelt

SIZES: dict[str, dict[str, Any]] = {
    "2x64": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    "12x768": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "16x1024": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16},
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
    },
}  # fmt: skip
SETTINGS = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
Way = Callable[[Any, torch.Tensor, int], torch.Tensor]


def build(size: str, device: str, dtype: torch.dtype) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**({"vocab_size": 32000, "max_position_embeddings": 4096} | SIZES[size]))
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # initial weights repeat one token
                if parameter.dim() > 1:
                    parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    return model.to(dtype)


def hugging_face(**settings: Any) -> Way:
    def run(model: Any, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        mask = torch.ones_like(ids)
        output: torch.Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, **SETTINGS, **settings)
        return output

    return run


def ours(**options: Any) -> Way:
    def run(model: Any, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        return smelt.generate(model, ids, max_new_tokens=tokens, stop_tokens=[], options=options)

    return run


def graphs(device: str) -> dict[str, str]:
    return {"cuda_graphs": "always"} if device == "cuda" else {}


STATIC = {"cache_implementation": "static", "disable_compile": True}


def prepare(way: str, model: Any, device: str) -> Way:
    """The way's function; what it compiles is set in the model."""
    if way == "eager":
        return hugging_face()
    if way == "smelt":
        return ours()
    if way == "smelt, no graphs":
        return ours(cuda_graphs="never")
    if way.startswith("peer"):
        torch._dynamo.reset()
        model.forward = torch.compile(model.forward, mode="reduce-overhead", dynamic=False)
        return hugging_face(**STATIC)
    model.forward = smelt.compile(model.forward, options=graphs(device))
    return hugging_face(**(STATIC if "static" in way else {}))


WAYS = ("eager", "smelt", "smelt, no graphs", "generate, static", "generate, dynamic", "peer, static")


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(run: Callable[[], torch.Tensor], device: str) -> tuple[torch.Tensor, float]:
    wait(device)
    start = time.perf_counter()
    output = run()
    wait(device)
    return output, time.perf_counter() - start


def measure(size: str, way: str, device: str, tokens: int, dtype: torch.dtype) -> str:
    smelt.reset()
    model = build(size, device, dtype)
    weights = {id(p): p.numel() * p.element_size() for p in model.parameters()}
    read = sum(weights.values()) - (0 if model.config.tie_word_embeddings else model.lm_head.weight.nbytes)
    ids = torch.randint(0, 32000, (1, 32), generator=torch.Generator().manual_seed(1)).to(device)
    run = prepare(way, model, device)
    _, first = timed(lambda: run(model, ids, tokens), device)
    seconds = [timed(lambda: run(model, ids, tokens), device)[1] for _ in range(3)]
    rate = tokens / statistics.median(seconds)
    counts = {name: smelt.counters[name] for name in ("graphs", "graph_breaks", "recompiles")}
    line = f"{size:8} {way:18} first {first:6.2f} s  {rate:8.1f} tokens/s  {rate * read / 1e9:7.1f} GB/s  {counts}"
    return line


def same_tokens(size: str, way: str, device: str, tokens: int) -> str:
    """Whether the tokens equal eager's in float32."""
    smelt.reset()
    ids = torch.randint(0, 32000, (1, 32), generator=torch.Generator().manual_seed(2)).to(device)
    expected = hugging_face()(build(size, device, torch.float32), ids, tokens)
    model = build(size, device, torch.float32)
    run = prepare(way, model, device)
    found = [run(model, ids, tokens) for _ in range(3)]
    equal = [bool(torch.equal(expected, each)) for each in found]
    first = [int((expected[0, : each.shape[1]] == each[0]).long().cumprod(0).sum()) - 32 for each in found]
    return f"{size:8} {way:18} float32 tokens equal eager's: {equal}, the first {first} of {tokens}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.generation", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["16x1024", "1b"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS[:-1]))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--check", nargs="*", choices=WAYS, default=[], help="compare tokens in float32 instead")
    args = parser.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    for size in args.sizes:
        for way in args.check or args.ways:
            try:
                if args.check:
                    print(same_tokens(size, way, args.device, args.tokens), flush=True)
                else:
                    gc.collect()
                    print(measure(size, way, args.device, args.tokens, dtype), flush=True)
            except Exception as error:
                print(f"{size:8} {way:18} {type(error).__name__}: {str(error)[:500]}", flush=True)


if __name__ == "__main__":
    main()
