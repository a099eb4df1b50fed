"""Texts that begin and end at different times in one batch, and the server that generates them."""

import http.client
import json
import random
import socket
import threading
import time
from typing import Any

import pytest
import torch

import smelt
from benchmarks.generate_models import MODELS
from smelt.base.events import collect
from smelt.generation.paged import BLOCK_TOKENS, PagedBatch
from smelt.ir.program import Program

pytest.importorskip("transformers")

LENGTHS = (5, 20, 3, 33, 7, 16)
ROOMS = (20, 5, 40, 12, 30, 1)


def prompts() -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(3, 90) for _ in range(length)] for length in LENGTHS]


def alone(model: Any, ids: list[int], tokens: int) -> list[int]:
    """What Hugging Face's loop generates for a prompt of its own."""
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.ones(1, len(ids), dtype=torch.long)
    result: list[int] = model.generate(
        torch.tensor([ids]), attention_mask=mask, max_new_tokens=tokens, **settings
    )[0].tolist()  # fmt: skip
    return result


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "mixtral"])
def test_texts_of_a_batch_equal_texts_alone(name: str) -> None:
    smelt.reset()
    model = MODELS[name].build()
    batch = PagedBatch(model, blocks=8, places=3)
    waiting, texts = list(zip(prompts(), ROOMS, strict=True)), []
    together = 0
    while waiting or batch:
        while waiting and batch.fits(len(waiting[0][0]) + waiting[0][1]):
            ids, room = waiting.pop(0)
            texts.append((ids, room, batch.add(ids, room)))
        together = max(together, len(list(batch.step())))
    for ids, room, text in texts:
        assert text.tokens == alone(model, ids, room)
    assert together > 1
    assert sorted(batch.free) == list(range(1, 8))
    assert smelt.counters["graphs"] <= 3
    assert smelt.counters["graph_breaks"] == 0


def test_no_memory_of_the_cache_is_copied() -> None:
    smelt.reset()
    batch = PagedBatch(MODELS["llama"].build(), blocks=8, places=2)
    with collect() as events:
        batch.add([3, 4, 5], 20)
        list(batch.step())
    *_, last = (event.subject for event in events if isinstance(event.subject, Program))
    assert last.outputs.count(None) == 4  # keys and values of two layers


def test_a_text_without_room_is_refused() -> None:
    batch = PagedBatch(MODELS["llama"].build(), blocks=3)
    batch.add([3] * 10, 10)
    for ids, room in (([3], 1), ([], 4), ([3], 0)):
        with pytest.raises(smelt.SmeltError, match=r"SM004.*no place"):
            batch.add(ids, room)
    assert batch.capacity == 2 * BLOCK_TOKENS


def test_a_text_whose_prompt_fails_takes_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = PagedBatch(MODELS["llama"].build(), blocks=4)

    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(batch, "read_prompt", fails)
        with pytest.raises(RuntimeError, match="no memory"):
            batch.add([3] * 10, 10)
    assert batch.fits(batch.capacity)
    assert not batch
    assert batch.add([3] * 10, 10).table == [2, 1]


def windowed(window: int) -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=97, num_key_value_heads=2, sliding_window=window, **sizes)
    return MistralForCausalLM(config).eval()


def test_texts_longer_than_a_window_are_refused() -> None:
    with pytest.raises(smelt.SmeltError, match=r"SM004.*attends to 40 tokens.*48 tokens"):
        PagedBatch(windowed(40), blocks=4)
    model = windowed(48)
    batch = PagedBatch(model, blocks=4)
    text = batch.add([3, 4, 5], 30)
    while batch:
        list(batch.step())
    assert text.tokens == alone(model, [3, 4, 5], 30)


def lines(port: int, body: object) -> tuple[int, list[dict[str, Any]]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/generate", json.dumps(body))
    response = connection.getresponse()
    return response.status, [json.loads(line) for line in response.read().splitlines()]


def test_the_server_streams_texts_of_several_clients() -> None:
    from examples.serve import serve

    model = MODELS["llama"].build()
    model.generation_config.eos_token_id = None
    server = serve(model, port=0, blocks=8, places=2)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answers: dict[int, tuple[int, list[dict[str, Any]]]] = {}

    def ask(number: int) -> None:
        answers[number] = lines(server.server_port, {"tokens": prompts()[number], "max_new_tokens": ROOMS[number]})

    try:
        clients = [threading.Thread(target=ask, args=(number,)) for number in range(len(LENGTHS))]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert lines(server.server_port, {"tokens": [3], "max_new_tokens": 1000})[0] == 400
        assert lines(server.server_port, {"tokens": [10**9]})[0] == 400
        assert lines(server.server_port, {"text": "a"})[0] == 400
        assert lines(server.server_port, [1])[0] == 400
    finally:
        server.shutdown()
        server.server_close()
    for number, ids in enumerate(prompts()):
        status, tokens = answers[number]
        assert status == 200
        assert ids + [line["token"] for line in tokens] == alone(model, ids, ROOMS[number])


def test_the_server_forgets_clients_that_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose request still waits for memory."""
    from examples.serve import serve

    monkeypatch.setattr(PagedBatch, "fits", lambda self, tokens: False)
    server = serve(MODELS["llama"].build(), port=0, blocks=8, places=2)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        before = threading.active_count()
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            body = json.dumps({"tokens": [3, 4]})
            client.sendall(f"POST /generate HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            assert client.recv(15) == b"HTTP/1.1 200 OK"
            assert threading.active_count() == before + 1
        end = time.monotonic() + 30
        while threading.active_count() > before and time.monotonic() < end:
            time.sleep(0.05)
        assert threading.active_count() == before
    finally:
        server.shutdown()
        server.server_close()


def test_the_server_goes_on_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.serve import serve

    add = PagedBatch.add

    def fails(self: PagedBatch, ids: list[int], room: int) -> Any:
        if ids == [5]:
            raise TypeError("no such prompt")
        return add(self, ids, room)

    monkeypatch.setattr(PagedBatch, "add", fails)
    model = MODELS["llama"].build()
    model.generation_config.eos_token_id = None
    server = serve(model, port=0, blocks=8, places=2)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert lines(server.server_port, {"tokens": [5]}) == (200, [{"error": "no such prompt"}])
        assert lines(server.server_port, {"tokens": [3], "max_new_tokens": float("inf")})[0] == 400
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
        for path, status in (("/other", 400), ("/generate", 200)):  # by the same connection
            connection.request("POST", path, json.dumps({"tokens": [3, 4], "max_new_tokens": 2}))
            response = connection.getresponse()
            assert response.status == status
            assert len(response.read().splitlines()) == (2 if status == 200 else 1)
    finally:
        server.shutdown()
        server.server_close()
