"""Text from a small model with random weights: `smelt.generate` beside Hugging Face's loop.

python examples/generate.py            needs transformers
"""

import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import smelt

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
sizes: Any = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **sizes)).eval().to(device)
ids = torch.randint(3, 1000, (1, 16), device=device)

for name, run in {
    "model.generate": lambda: model.generate(ids, max_new_tokens=64, do_sample=False, eos_token_id=None),
    "smelt.generate": lambda: smelt.generate(model, ids, max_new_tokens=64, stop_tokens=[]),
}.items():
    start = time.perf_counter()
    first = run()
    compiled = time.perf_counter()
    run()
    seconds = time.perf_counter() - compiled
    print(f"{name}: first call {compiled - start:.2f} s, then {64 / seconds:.0f} tokens/s")

print("sampled:", smelt.generate(model, ids, max_new_tokens=8, temperature=0.8, top_k=50)[0, 16:].tolist())
