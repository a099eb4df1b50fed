"""Tokens generated with caches of keys and values: those that eager generates, in few graphs, no cache copied."""

from typing import Any

import pytest
import torch

import smelt
from benchmarks import generate as benchmark
from smelt.base.events import collect
from smelt.ir.program import Place, Program

transformers = pytest.importorskip("transformers")

TOKENS, ROOM = 12, 50
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"intermediate_size": 48, "max_position_embeddings": 64},
    ),
}


def build(name: str) -> Any:
    architecture, settings = SETTINGS[name]
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    return kind(kind.config_class(vocab_size=100, **settings)).eval().to(torch.get_default_device())


def generate(model: Any, cache: str) -> torch.Tensor:
    held = transformers.DynamicCache()
    if cache == "static":
        held = transformers.StaticCache(config=model.config, max_cache_len=ROOM)
    ids = torch.arange(10).reshape(2, 5)
    found: torch.Tensor = model.generate(
        ids, past_key_values=held, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return found


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_tokens(name: str, cache: str) -> None:
    smelt.reset()
    wanted = generate(build(name), cache)
    model = build(name)
    model.forward = smelt.compile(model.forward)
    for _ in range(2):
        assert torch.equal(generate(model, cache), wanted)
    assert smelt.counters["graphs"] == 2  # for the prompt, and for a token after it
    assert smelt.counters["graph_breaks"] == smelt.counters["sizes_refused"] == 0


@pytest.mark.parametrize("name", SETTINGS)
def test_no_cache_is_copied(name: str) -> None:
    smelt.reset()
    model = build(name)
    model.forward = smelt.compile(model.forward)
    with collect() as events:
        generate(model, "static")
    *_, last = (event.subject for event in events if isinstance(event.subject, Program))
    caches = [b.spec for b in last.buffers if b.place is Place.INPUT and b.spec.shape[2:3] == (ROOM,)]
    assert len(caches) == 4  # keys and values of two layers
    assert not [b.name for b in last.buffers if b.place is not Place.INPUT and b.spec.numel == caches[0].numel]
    assert last.outputs.count(None) >= len(caches)


@pytest.mark.parametrize(
    ("name", "mode", "most"),
    [
        ("llama", "padded", 2),
        ("llama", "beams", 2),
        ("llama", "sample", 2),
        ("llama", "assisted", 3),
        ("llama", "static", 3),  # tokens in a cache of the first size, and of any size
        ("llama", "chunked", 3),  # the first chunk, later ones, and tokens
        ("bloom", "lookup", 3),  # the prompt, one token, and several
        ("falcon", "greedy", 2),
        ("gemma3", "greedy", 4),  # a window: prompts and tokens before and after it is full
        ("t5", "greedy", 3),  # a cache of one token has a graph of its own
        ("t5", "static", 2),
        ("llava", "static", 3),
        ("llava", "uncached", 2),
        ("mamba", "greedy", 3),
    ],
)
def test_modes_of_generation(name: str, mode: str, most: int) -> None:
    smelt.reset()
    chosen = benchmark.MODELS[name]
    outputs = []
    for prepare in (lambda model: model, lambda model: benchmark.compiled(model, "forward")):
        model = chosen.build()
        model.assistant = [chosen.build()]
        prepare(model)
        outputs.append([benchmark.generate(model, chosen.prompt, mode, TOKENS, length)[0] for length in (7, 11)])
    assert all(map(torch.equal, *outputs))
    assert smelt.counters["graphs"] <= most
    assert smelt.counters["graph_breaks"] == smelt.counters["eager_graphs"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", benchmark.MODES)
@pytest.mark.parametrize("name", benchmark.MODELS)
def test_every_mode_generates_the_tokens_of_eager(name: str, mode: str) -> None:
    reason = benchmark.why_eager_refuses(name, mode)
    if reason:
        pytest.skip(f"eager refuses: {reason}")
    row = benchmark.measure(name, mode, 2 * TOKENS, (7, 11), "forward", rates=False)
    assert row.is_same
    unrolls = mode == "uncached" and name in ("mamba", "rwkv")  # each token is a longer prompt
    assert unrolls or (row.counts["graph_breaks"] == 0 and row.graphs[0] <= benchmark.MOST_GRAPHS + 1)
