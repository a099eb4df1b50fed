"""Text generation by a model of transformers, in a Python loop over its cache, exported as it is written."""

from typing import Any

import pytest
import torch

from smelt.deploy.artifact import export

transformers: Any = pytest.importorskip("transformers")


def test_gpt2_with_a_dynamic_cache() -> None:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 64}
    config = transformers.GPT2Config(**sizes, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).eval()

    def generate(ids: torch.Tensor, max_new: int, eos: int) -> torch.Tensor:
        out = model(ids, use_cache=True)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], 1)
        for _ in range(max_new - 1):
            if token.item() == eos:
                break
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, token], 1)
        return ids

    prompt = torch.tensor([[1, 2, 3, 4]])
    artifact = export(generate, (prompt, 10, 49))
    with torch.no_grad():
        whole = generate(prompt, 40, 100)
        eos = int(whole[0, 12])
        for limit, end in ((1, 100), (2, 100), (40, 100), (40, eos)):
            assert torch.equal(artifact(prompt, limit, end), generate(prompt, limit, end))
