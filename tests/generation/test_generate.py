"""`smelt.generate` beside Hugging Face's `generate`: the same tokens, two graphs, whatever the lengths and the ends."""

import gc
import weakref
from typing import Any

import pytest
import torch

import smelt
from benchmarks.generate_models import MODELS
from smelt.base.events import collect
from smelt.generation import run
from smelt.ir.program import Program

pytest.importorskip("transformers")

NAMES = (
    *("gpt2", "llama", "qwen3", "gemma3", "mistral", "phi", "phi3", "olmoe", "mixtral", "gpt_oss", "deepseek_v3"),
    *("bloom", "falcon", "gpt_neox"),
)
STOP, PAD = 2, 0


def prompts(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 190, (rows, length), generator=torch.Generator().manual_seed(length))


def of_hugging_face(model: Any, ids: torch.Tensor, tokens: int, **settings: Any) -> torch.Tensor:
    settings = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": STOP} | settings
    output: torch.Tensor = model.generate(ids, max_new_tokens=tokens, pad_token_id=PAD, **settings)
    return output


def of_smelt(model: Any, ids: torch.Tensor, tokens: int, **settings: Any) -> torch.Tensor:
    settings = {"stop_tokens": STOP, "pad_token": PAD} | settings
    return smelt.generate(model, ids, max_new_tokens=tokens, **settings)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_eager_in_two_graphs(name: str) -> None:
    smelt.reset()
    model = MODELS[name].build()
    for length, tokens in ((7, 24), (5, 70)):
        ids = prompts(2, length)
        assert torch.equal(of_smelt(model, ids, tokens), of_hugging_face(model, ids, tokens))
    assert smelt.counters["graphs"] == 2
    assert smelt.counters["graph_breaks"] == smelt.counters["sizes_refused"] == 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "bloom"])
def test_left_padding(name: str) -> None:
    model = MODELS[name].build()
    ids = prompts(3, 9)
    mask = torch.ones_like(ids)
    mask[0, :4] = mask[2, :1] = ids[0, :4] = ids[2, :1] = 0
    expected = of_hugging_face(model, ids, 20, attention_mask=mask)
    assert torch.equal(of_smelt(model, ids, 20, attention_mask=mask), expected)


def test_texts_end_at_different_tokens() -> None:
    model = MODELS["llama"].build()
    ids = prompts(3, 6)
    generated = of_smelt(model, ids, 30, stop_tokens=[])[:, 6:]
    stops = [int(generated[0, 3]), int(generated[1, 9]), int(generated[2, 17])]
    expected = of_hugging_face(model, ids, 30, eos_token_id=stops)
    assert expected.shape[1] < 36
    assert torch.equal(of_smelt(model, ids, 30, stop_tokens=stops), expected)


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.5}], ids=["greedy", "penalty"])
def test_the_pad_token_need_not_be_in_the_vocabulary(settings: dict[str, Any]) -> None:
    model = MODELS["llama"].build()
    ids = prompts(2, 6)
    generated = of_smelt(model, ids, 20, stop_tokens=[], **settings)
    for column in range(7, 14):
        stop = int(generated[0, column])
        expected = of_smelt(model, ids, 20, stop_tokens=stop, **settings)
        found = of_smelt(model, ids, 20, stop_tokens=stop, pad_token=-1, **settings)
        assert found.shape == expected.shape
        assert bool(((found == expected) | ((found == -1) & (expected == PAD))).all())


def test_buffers_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FIRST_ROOM_TOKENS", 8)
    monkeypatch.setattr(run, "ROOM_MULTIPLE", 4)
    smelt.reset()
    model = MODELS["llama"].build()
    ids = prompts(2, 5)
    assert torch.equal(of_smelt(model, ids, 60), of_hugging_face(model, ids, 60))
    assert smelt.counters["graphs"] == 2


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}], ids=["greedy", "sampled"])
def test_no_cache_is_copied(settings: dict[str, Any]) -> None:
    smelt.reset()
    with collect() as events:
        of_smelt(MODELS["llama"].build(), prompts(2, 6), 5, **settings)
    *_, last = (event.subject for event in events if isinstance(event.subject, Program))
    assert last.outputs.count(None) == 5  # keys and values of two layers, and the output


SAMPLED: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 30, "repetition_penalty": 1.3},
)


@pytest.mark.parametrize("settings", SAMPLED, ids=lambda each: "-".join(each))
def test_samples_equal_those_of_multinomial(settings: dict[str, Any]) -> None:
    model = MODELS["llama"].build()
    ids = prompts(2, 6)
    torch.manual_seed(5)
    filters = {"top_k": 0} | settings
    expected = of_hugging_face(model, ids, 40, do_sample=True, **filters)
    torch.manual_seed(5)
    assert torch.equal(of_smelt(model, ids, 40, **settings), expected)
    first, second = (of_smelt(model, ids, 40, generator=torch.Generator().manual_seed(5), **settings) for _ in range(2))
    assert torch.equal(first, second)


def test_repetition_penalty_of_greedy_tokens() -> None:
    model = MODELS["gpt2"].build()
    ids = prompts(2, 6)
    expected = of_hugging_face(model, ids, 30, repetition_penalty=1.5)
    assert torch.equal(of_smelt(model, ids, 30, repetition_penalty=1.5), expected)


def test_the_frequencies_of_samples() -> None:
    model = MODELS["llama"].build()
    ids = prompts(1, 6).expand(4000, -1).contiguous()
    with torch.no_grad():
        probabilities = (model(ids[:1]).logits[0, -1].double() / 0.8).softmax(-1)
    found = of_smelt(model, ids, 1, temperature=0.8, stop_tokens=[])[:, 6]
    counts = torch.bincount(found, minlength=200).double()
    expected = probabilities * 4000
    large = expected > 5
    chi_square = float(((counts - expected) ** 2 / expected)[large].sum())
    freedom = int(large.sum()) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("is_same", [True, False], ids=["all-accepted", "few-accepted"])
def test_an_assistant_does_not_change_the_tokens(is_same: bool) -> None:
    model, assistant = MODELS["llama"].build(), MODELS["llama"].build()
    if not is_same:
        with torch.no_grad():
            assistant.lm_head.weight.add_(0.3 * torch.randn_like(assistant.lm_head.weight))
    smelt.reset()
    for length, tokens in ((6, 40), (9, 61)):
        ids = prompts(1, length)
        expected = of_hugging_face(model, ids, tokens)
        streamer = _Streamer()
        assert torch.equal(of_smelt(model, ids, tokens, assistant=assistant, streamer=streamer), expected)
        assert torch.cat(streamer.columns).tolist() == expected[0].tolist()
        stop = int(expected[0, -7])
        stopped = of_hugging_face(model, ids, tokens, eos_token_id=stop)
        assert torch.equal(of_smelt(model, ids, tokens, assistant=assistant, stop_tokens=stop), stopped)
    assert smelt.counters["graphs"] <= 5  # prompts and tokens of both, the check
    assert smelt.counters["graph_breaks"] == 0


@pytest.mark.parametrize("length", [104, 105, 106, 122, 126])
def test_an_assistant_drafts_nothing_behind_the_last_position(length: int) -> None:
    model, assistant = MODELS["gpt2"].build(), MODELS["gpt2"].build()
    ids = prompts(1, length)
    tokens = model.config.n_positions - length
    expected = of_hugging_face(model, ids, tokens, eos_token_id=None)
    assert torch.equal(of_smelt(model, ids, tokens, stop_tokens=[], assistant=assistant), expected)


class _Streamer:
    def __init__(self) -> None:
        self.columns: list[torch.Tensor] = []
        self.is_ended = False

    def put(self, value: torch.Tensor) -> None:
        self.columns.append(value.reshape(-1))

    def end(self) -> None:
        self.is_ended = True


def test_a_streamer_gets_what_hugging_face_gives_it() -> None:
    model = MODELS["llama"].build()
    ids = prompts(1, 6)
    ours, theirs = _Streamer(), _Streamer()
    stop = int(of_smelt(model, ids, 12)[0, -2])
    output = of_smelt(model, ids, 20, stop_tokens=stop, streamer=ours)
    of_hugging_face(model, ids, 20, eos_token_id=stop, streamer=theirs)
    assert ours.is_ended
    assert [column.tolist() for column in ours.columns] == [column.tolist() for column in theirs.columns]
    assert torch.cat(ours.columns).tolist() == output[0].tolist()


def test_the_prompt_of_the_caller_is_left_alone() -> None:
    ids, mask = prompts(2, 6), torch.ones(2, 6, dtype=torch.bool)
    mask[0, 0] = False
    of_smelt(MODELS["llama"].build(), ids, 2, attention_mask=mask)
    assert not vars(ids)
    assert not vars(mask)


def test_options_of_the_wrong_type_are_named() -> None:
    with pytest.raises(smelt.SmeltError, match=r"SM003.*threads"):
        of_smelt(MODELS["llama"].build(), prompts(1, 3), 2, options={"threads": [1]})


def test_a_model_is_collected() -> None:
    model = MODELS["llama"].build()
    of_smelt(model, prompts(1, 6), 3)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class _Own(torch.nn.Module):
    """A module of no library that has the protocol: one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.project = torch.nn.Linear(16, 48)
        self.head = torch.nn.Linear(16, 50)

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None) -> tuple[torch.Tensor]:
        x = self.table(input_ids)
        q, k, v = self.project(x).view(*input_ids.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        seen = torch.as_tensor(0 if past_key_values is None else past_key_values.get_seq_length(0))
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, 0)
        rows = torch.arange(q.shape[2])[:, None] + seen
        mask = torch.arange(k.shape[2])[None, :] <= rows
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return (self.head(x + y.transpose(1, 2).reshape(x.shape)),)


def test_a_module_with_the_protocol() -> None:
    torch.manual_seed(0)
    model = _Own().eval()
    ids = prompts(2, 5) % 50
    expected = ids
    with torch.no_grad():
        for _ in range(12):
            expected = torch.cat([expected, model(expected)[0][:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(smelt.generate(model, ids, max_new_tokens=12), expected)


def test_a_compiled_model() -> None:
    model = MODELS["llama"].build()
    ids = prompts(2, 5)
    expected = of_hugging_face(model, ids, 10)
    assert torch.equal(of_smelt(smelt.compile(model), ids, 10), expected)


def test_padding_is_refused_by_a_module_without_a_mask() -> None:
    ids = prompts(2, 5) % 50
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    with pytest.raises(smelt.SmeltError, match=r"SM004.*attention_mask"):
        smelt.generate(_Own().eval(), ids, attention_mask=mask)


def test_layers_out_of_order_are_refused() -> None:
    model = MODELS["llama"].build()
    model.model.layers = model.model.layers[::-1]
    with pytest.raises(smelt.SmeltError, match=r"SM004.*in order: layer 1 follows 0 layers"):
        smelt.generate(model, prompts(1, 5))


@pytest.mark.parametrize("name", ["t5", "mamba", "qwen3_next"])
def test_models_with_other_caches_are_refused(name: str) -> None:
    with pytest.raises(smelt.SmeltError, match=r"SM004.*in place"):
        smelt.generate(MODELS[name].build(), prompts(1, 5))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1e-46}, "temperature"),
        ({"top_p": 0.9}, "temperature is 0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p"),
        ({"temperature": 1.0, "top_k": 2.5}, "top_k"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": 1.0, "assistant": torch.nn.Linear(1, 1)}, "assistant"),
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "ends with padding"),
        ({"attention_mask": torch.ones(1, 4)}, "shape"),
    ],
)
def test_impossible_arguments(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(smelt.SmeltError, match=f"SM004.*{text}"):
        smelt.generate(MODELS["llama"].build(), prompts(1, 3), **settings)
