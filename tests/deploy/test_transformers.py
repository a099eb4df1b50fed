"""Models of `transformers` as they are written there: mixtures of experts, and what cannot be exported of them."""

from typing import Any

import pytest
import torch
import transformers

import smelt
from smelt.base.errors import SmeltError

SMALL: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32,
}  # fmt: skip


def mixture() -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **SMALL)
    return transformers.MixtralForCausalLM(config).eval()


def test_a_mixture_of_experts_of_any_length() -> None:
    model = mixture()
    model.set_experts_implementation("batched_mm")

    def scores(ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=ids, use_cache=False).logits
        return found

    artifact = smelt.export(scores, (torch.randint(0, 50, (1, 7)),), dynamic={"ids": {1: ("length", 2, 16)}})
    for length in (2, 7, 16):
        ids = torch.randint(0, 50, (1, length))
        with torch.no_grad():
            torch.testing.assert_close(artifact(ids), scores(ids))


def test_a_mixture_of_experts_with_an_operator_of_its_own_says_what_to_set() -> None:
    model = mixture()
    with pytest.raises(SmeltError, match="grouped_mm") as caught:
        smelt.export(lambda ids: model(input_ids=ids, use_cache=False).logits, (torch.randint(0, 50, (1, 7)),))
    assert 'set_experts_implementation("batched_mm")' in caught.value.hint


def test_generate_says_what_to_export_instead() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    ids = torch.randint(0, 50, (1, 7))
    with pytest.raises(SmeltError, match="generate\\(\\) is a loop in Python") as caught:
        smelt.export(lambda ids: model.generate(ids, max_new_tokens=4, do_sample=False), (ids,))
    assert "export one step" in caught.value.hint
