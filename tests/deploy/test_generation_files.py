"""Language models of transformers as files that generate text: the tokens of C and Python are those of `generate`."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from smelt.cli import main
from smelt.deploy.generation.chat import Generator, Sampling, Words
from smelt.deploy.runtime import Session
from smelt.ir.artifact_file.read import read
from tests.deploy.programs import built, run

transformers: Any = pytest.importorskip("transformers")

WORDS, LENGTH = 60, 32
SMALL: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
WITHOUT_GROUPS = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": WORDS, "n_positions": 64}
BLOOM = {"n_layer": 2, "n_head": 4, "hidden_size": 32, "vocab_size": WORDS}
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "llama": ("LlamaConfig", "LlamaForCausalLM", SMALL),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**SMALL, "head_dim": 8}),
    "mistral with a window": ("MistralConfig", "MistralForCausalLM", {**SMALL, "sliding_window": 8}),
    "gemma3 with windows": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**SMALL, "head_dim": 8, "sliding_window": 8}),
    "phi": ("PhiConfig", "PhiForCausalLM", SMALL),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", SMALL),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", WITHOUT_GROUPS),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {**SMALL, "num_experts": 4, "num_experts_per_tok": 2}),
    "bloom": ("BloomConfig", "BloomForCausalLM", BLOOM),
}


def model_of(name: str) -> Any:
    """With weights large enough for tokens to differ."""
    config, kind, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**sizes, **ENDS})).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    if name == "olmoe":
        model.set_experts_implementation("batched_mm")
    return model


def expected(model: Any, prompt: list[int], count: int) -> list[int]:
    """What `generate` appends to a prompt."""
    ids = torch.tensor([prompt])
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **settings)[0]
    found: list[int] = tokens[len(prompt) :].tolist()
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("examples/deploy/generate.c", tmp_path_factory.mktemp("generate"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model, folder = model_of("llama"), tmp_path_factory.mktemp("llama")
    return model, smelt.export_generation(model, max_length=LENGTH).save(folder / "llama.smelt")


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_generate(name: str, program: Path, tmp_path: Path) -> None:
    model = model_of(name)
    path = smelt.export_generation(model, max_length=LENGTH).save(tmp_path / "model.smelt")
    generator = Generator(path)
    lengths = (1, 2, 5, 14)
    for length in lengths:
        prompt = torch.randint(0, WORDS, (length,)).tolist()
        tokens = expected(model, prompt, 12)
        assert [int(each) for each in run(program, path, 12, *prompt).split()] == tokens
        generator.reset()
        assert list(itertools.islice(generator.reply(prompt), 12)) == tokens


def test_replies_continue_the_text(llama: tuple[Any, Path]) -> None:
    model, path = llama
    generator = Generator(path)
    text: list[int] = []
    for said, count in (([3, 1, 4], 2), ([1, 5], 3), ([9], 1)):
        text += said
        for wanted, token in zip(expected(model, text, count), generator.reply(said), strict=False):
            assert token == wanted
            text.append(token)
    assert generator.length == len(text) - 1  # the last one is not in the cache yet


def test_a_full_cache_ends_a_text(llama: tuple[Any, Path]) -> None:
    model, path = llama
    generator = Generator(path)
    assert list(generator.reply([7, 8, 9])) == expected(model, [7, 8, 9], LENGTH - 3)
    with pytest.raises(SmeltError, match="2 tokens do not fit: the cache has room for 1 more"):
        next(generator.reply([1]))
    entry = smelt.load(path).entry("prefill")
    with pytest.raises(SmeltError, match="tokens is 32, and must be from 1 to 31"):
        entry(torch.zeros(1, LENGTH, dtype=torch.int64))
    entry(torch.zeros(1, LENGTH - 1, dtype=torch.int64))
    with pytest.raises(SmeltError, match="out of range"):
        entry(torch.zeros(1, LENGTH - 1, dtype=torch.int64))  # from position 31 on
    with pytest.raises(SmeltError, match="out of range"):
        entry(torch.full((1, 1), WORDS))


def test_a_text_goes_on_after_an_interruption(llama: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is seen when a call is done: what it put into the cache stays there."""
    model, path = llama
    generator = Generator(path)
    run = Session.run
    calls = 0

    def interrupted(session: Session, *args: Any) -> None:
        nonlocal calls
        run(session, *args)
        calls += 1
        if calls in (3, 5):
            raise KeyboardInterrupt

    monkeypatch.setattr(Session, "run", interrupted)
    text, replies = [3, 1, 4], generator.reply([3, 1, 4])
    with pytest.raises(KeyboardInterrupt):
        text.extend(replies)  # extends by what comes before
    assert len(text) == 5 and generator.length == 5
    text += [2]
    assert next(generator.reply([2])) == expected(model, text, 1)[0]  # not put in twice
    text += expected(model, text, 1)
    with pytest.raises(KeyboardInterrupt):
        next(generator.reply([7, 8]))
    text += [7, 8]
    assert generator.length == len(text)
    text += [9]
    assert next(generator.reply([9])) == expected(model, text, 1)[0]


def test_settings_and_tokens_that_make_no_sense_are_refused(llama: tuple[Any, Path]) -> None:
    generator = Generator(llama[1])
    for sampling in (Sampling(1.0, top_k=0), Sampling(float("nan"))):
        with pytest.raises(SmeltError, match="one of at least 1, at a temperature"):
            next(generator.reply([3], sampling))
    for token in (-1, 1 << 63, (1 << 64) + 1):
        with pytest.raises(SmeltError, match="more than 63 bits"):
            next(generator.reply([3, token]))
    with pytest.raises(SmeltError, match=f"{LENGTH} tokens do not fit: .*for {LENGTH} more, and a reply takes one"):
        next(generator.reply([1] * LENGTH))
    assert main(["chat", str(llama[1]), "--tokens", "0"]) != 0
    assert generator.length == 0


def test_sampling_is_from_the_likeliest_tokens(llama: tuple[Any, Path], program: Path) -> None:
    model, path = llama
    with torch.no_grad():
        likeliest = set(model(torch.tensor([[3, 1, 4]])).logits[0, -1].topk(4).indices.tolist())
    ours, theirs = set(), set()
    for seed in range(40):
        generator = Generator(path)
        ours.add(next(generator.reply([3, 1, 4], Sampling(temperature=5.0, top_k=4, seed=seed))))
        theirs.add(int(run(program, "-t", 5, "-k", 4, "-s", seed, path, 1, 3, 1, 4)))
    assert ours == theirs == likeliest


def test_batches_of_one_length() -> None:
    model = model_of("gpt2")
    artifact = smelt.export_generation(model, max_length=LENGTH, batch=2)
    ids = torch.randint(0, WORDS, (2, 6))
    token, logits = artifact.entry("prefill")(ids)
    tokens = [token]
    for _ in range(7):
        token, logits = artifact.entry("decode")(token)
        tokens.append(token)
    assert torch.stack(tokens, 1).tolist() == [expected(model, row, 8) for row in ids.tolist()]
    assert logits.shape == (2, WORDS)


def test_weights_are_in_the_file_once(llama: tuple[Any, Path]) -> None:
    model, path = llama
    weights = sum(each.numel() for each in model.parameters()) * 4
    assert weights <= read(path.read_bytes()).weights.bytes < 1.05 * weights + 4096
    state = smelt.load(path).state_dict()
    assert next(iter(state)) == "position" and state["keys0"].shape == (1, 2, LENGTH, 8)


def test_models_that_are_no_decoders_of_attention_layers_are_refused() -> None:
    config = transformers.T5Config(num_layers=1, d_model=16, d_kv=8, d_ff=16)
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(SmeltError, match="an encoder"):
        smelt.export_generation(t5)
    with pytest.raises(SmeltError, match="training mode"):
        smelt.export_generation(model_of("llama").train())
    with pytest.raises(SmeltError, match="no causal language model"):
        smelt.export_generation(torch.nn.Linear(2, 2).eval())


def test_chat_prints_numbers_without_a_tokenizer(
    llama: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = llama
    lines = iter(["3 1 4", "/reset", "7 8"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines, None) or (_ for _ in ()).throw(EOFError))
    assert main(["chat", str(path), "--tokens", "4"]) == 0
    shown = capsys.readouterr()
    assert [[int(token) for token in line.split()] for line in shown.out.splitlines()] == [
        expected(model, [3, 1, 4], 4),
        expected(model, [7, 8], 4),
    ]
    assert "4 tokens, " in shown.err and "tokens/s" in shown.err


def test_chat_shows_text_with_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    names = {f"w{number}": number for number in range(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    model = model_of("llama")
    artifact = smelt.export_generation(model, max_length=LENGTH, tokenizer=tmp_path / "tokenizer.json")
    generator = Generator(artifact.save(tmp_path / "llama.smelt"))
    words = Words(generator.tokenizer)
    tokens = itertools.islice(generator.reply(words.encode("w3 w1 w4")), 4)
    shown = "".join(words.streamed(tokens))
    assert shown.split() == [f"w{token}" for token in expected(model, [3, 1, 4], 4)]
    with pytest.raises(SmeltError, match="a prompt is numbers"):
        Words(None).encode("w3")
