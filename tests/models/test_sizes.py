"""Language models over batches and lengths that change: kernels are compiled once, and all is as eager has it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

transformers = pytest.importorskip("transformers")


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_batches_and_lengths_compile_no_kernels(make: Callable[[], Any]) -> None:
    smelt.reset()
    torch.manual_seed(0)
    model = make().double().to(torch.get_default_device())
    compiled = smelt.compile(model, dynamic=True)
    built = 0
    for batch, length in ((4, 9), (4, 12), (3, 12), (2, 5), (7, 33), (5, 7)):
        tokens = torch.randint(0, 50, (batch, length))
        losses, gradients = [], []
        for each in (model, compiled):
            model.zero_grad()
            found = each(input_ids=tokens, labels=tokens, use_cache=False)
            found.loss.backward()
            losses.append(found.loss)
            gradients.append([weight.grad.clone() for weight in model.parameters()])
        torch.testing.assert_close(losses[1], losses[0])
        torch.testing.assert_close(gradients[1], gradients[0])
        built = built or smelt.counters["kernels_built"]
    assert built > 0 and smelt.counters["kernels_built"] == built
    assert smelt.counters["graphs"] == 1 and smelt.counters["sizes_traced"] == 1
