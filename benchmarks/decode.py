"""Tokens generated one by one with a cache of keys and values, eagerly and compiled, in turns.

    python -m benchmarks.decode [--models gpt2 llama] [--caches static dynamic] [--tokens 64] [--room 512] [--threads 1]

One line each: milliseconds a token by eager and by smelt (processor time, the best of the rounds), the first generation
by smelt in seconds, compiling included, and whether the tokens are the same. `--room`: the length of a static cache.
"""

import argparse
import time
from typing import Any

import torch

import smelt

_SIZES = {"vocab_size": 1000}
_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 2048}),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"intermediate_size": 688, "max_position_embeddings": 2048},
    ),
}


def build(name: str) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    architecture, settings = _SETTINGS[name]
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    return kind(kind.config_class(**_SIZES, **settings)).eval()


def generate(model: Any, ids: torch.Tensor, tokens: int, cache: str, room: int) -> tuple[torch.Tensor, float]:
    """The tokens, and the processor seconds they took."""
    from transformers import DynamicCache, StaticCache

    held = StaticCache(config=model.config, max_cache_len=room) if cache == "static" else DynamicCache()
    began = time.process_time()
    found = model.generate(
        ids, past_key_values=held, max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return found, time.process_time() - began


def measure(name: str, cache: str, tokens: int, room: int, rounds: int) -> str:
    smelt.reset()
    eager, compiled = build(name), build(name)
    compiled.forward = smelt.compile(compiled.forward)
    ids = torch.randint(0, 1000, (2, 7), generator=torch.Generator().manual_seed(1))
    wanted, _ = generate(eager, ids, tokens, cache, room)
    found, first = generate(compiled, ids, tokens, cache, room)
    turns = [[generate(each, ids, tokens, cache, room)[1] for each in (eager, compiled)] for _ in range(rounds)]
    theirs, ours = (min(turn) * 1e3 / tokens for turn in zip(*turns, strict=True))
    same = "the same tokens" if torch.equal(wanted, found) else "OTHER TOKENS"
    speed = f"eager {theirs:6.2f}  smelt {ours:6.2f}  {theirs / ours:.2f}×"
    return f"{name:6} {cache:8} {speed}  first {first:.2f} s  {same}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.decode", description="tokens with a cache, eager and compiled")
    parser.add_argument("--models", nargs="+", choices=list(_SETTINGS), default=list(_SETTINGS))
    parser.add_argument("--caches", nargs="+", choices=("static", "dynamic"), default=["static", "dynamic"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--room", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.models:
        for cache in args.caches:
            print(measure(name, cache, args.tokens, args.room, args.rounds), flush=True)


if __name__ == "__main__":
    main()
