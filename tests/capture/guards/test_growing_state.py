"""State that grows from call to call: its sizes are symbols from the first call on."""

import pytest
import torch
from torch import nn

import smelt


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    smelt.reset()


class Cache:
    """Keys in a list of layers, as libraries keep them."""

    def __init__(self, layers: int = 2) -> None:
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.length = 0

    def update(self, layer: int, new: torch.Tensor) -> torch.Tensor:
        old = self.keys[layer]
        old = torch.tensor([]) if old is None else old
        keys = torch.cat([old, new], 1)
        self.keys[layer] = keys
        if layer == 0:
            self.length += new.shape[1]
        return keys


class Windowed(Cache):
    """Keeps the last few keys only."""

    def update(self, layer: int, new: torch.Tensor) -> torch.Tensor:
        keys = super().update(layer, new)
        self.keys[layer] = keys[:, -5:]
        return keys


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        x = self.embedding(ids) + cache.length
        for number, layer in enumerate(self.layers):
            keys = cache.update(number, layer(x))
            x = x + (x @ keys.transpose(1, 2)).softmax(-1) @ keys
        output: torch.Tensor = x
        return output


def generate(model: nn.Module, cache: Cache, length: int, tokens: int = 6, rows: int = 2) -> torch.Tensor:
    """The outputs of a prompt and of some tokens after it."""
    outputs = [model(torch.arange(rows * length).reshape(rows, length) % 20, cache)[:, -1]]
    for token in range(tokens):
        outputs.append(model(torch.full((rows, 1), token % 20), cache)[:, -1])
    return torch.stack(outputs)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_growing_cache_takes_one_graph_for_the_prompt_and_one_for_all_tokens(rows: int) -> None:
    compiled = smelt.compile(Model())
    for length in (7, 3, 11):
        expected = generate(Model(), Cache(), length, rows=rows)
        torch.testing.assert_close(generate(compiled, Cache(), length, rows=rows), expected)
    assert smelt.counters["graphs"] == 2
    assert smelt.counters["sizes_refused"] == smelt.counters["graph_breaks"] == 0


def test_a_window_takes_graphs_for_before_and_after_it_is_full() -> None:
    compiled = smelt.compile(Model())
    for length in (2, 3, 9, 7):
        torch.testing.assert_close(generate(compiled, Windowed(), length), generate(Model(), Windowed(), length))
    assert smelt.counters["graphs"] <= 5  # prompts and tokens before and after it is full, and one of other strides


@pytest.mark.parametrize("rows", [1, 2])
def test_a_cropped_cache_takes_no_further_graph(rows: int) -> None:
    compiled, model = smelt.compile(Model()), Model()
    for prompt in (7, 4):
        caches = Cache(), Cache()
        for length, dropped in ((prompt, 0), (1, 0), (3, 2), (1, 0), (4, 1), (2, 1), (1, 0)):
            ids = torch.arange(rows * length).reshape(rows, length) % 20
            for cache in caches:
                cache.length -= dropped
                cache.keys = [keys if keys is None or not dropped else keys[:, :-dropped] for keys in cache.keys]
            torch.testing.assert_close(compiled(ids, caches[0]), model(ids, caches[1]))
    assert smelt.counters["graphs"] == 3  # for the prompt, for one token and for several


def test_parts_of_prompts_of_any_length_take_one_graph() -> None:
    compiled, model = smelt.compile(Model()), Model()
    for length in (7, 11):
        caches = Cache(), Cache()
        prompt = torch.arange(2 * length).reshape(2, length) % 20
        for part in (*prompt.split(4, 1), prompt[:, :1]):
            torch.testing.assert_close(compiled(part, caches[0]), model(part, caches[1]))
    assert smelt.counters["graphs"] == 3


class Buffered(Cache):
    """Writes keys into a buffer of a size that the cache is given."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.position = torch.tensor(0)

    def update(self, layer: int, new: torch.Tensor) -> torch.Tensor:
        old = self.keys[layer]
        keys = torch.zeros(new.shape[0], self.room, new.shape[2]) if old is None else old
        self.keys[layer] = keys
        keys.index_copy_(1, self.position + torch.arange(new.shape[1]), new)
        if layer == 1:
            self.position += new.shape[1]
        return keys


@torch.no_grad()
def test_buffers_of_any_room_take_one_graph_for_prompts() -> None:
    compiled = smelt.compile(Model())
    for length, room in ((7, 16), (5, 20), (9, 18)):
        expected = generate(Model(), Buffered(room), length)
        torch.testing.assert_close(generate(compiled, Buffered(room), length), expected)
    assert smelt.counters["graphs"] == 3  # for prompts, for tokens in the first room and in others
    assert smelt.counters["sizes_refused"] == smelt.counters["graph_breaks"] == 0


def test_a_cache_that_eager_filled_is_open_from_the_first_compiled_call() -> None:
    model, cache, expected = Model(), Cache(), Cache()
    for each in (cache, expected):
        model(torch.arange(14).reshape(2, 7), each)
    compiled = smelt.compile(Model())
    for token in range(5):
        ids = torch.full((2, 1), token)
        torch.testing.assert_close(compiled(ids, cache), model(ids, expected))
    assert smelt.counters["graphs"] == 1


def test_a_prompt_of_a_size_that_is_a_feature_size_too() -> None:
    compiled = smelt.compile(Model())
    for length in (8, 5, 8):
        torch.testing.assert_close(generate(compiled, Cache(), length), generate(Model(), Cache(), length))
    assert smelt.counters["graphs"] == 2


def test_sizes_of_calls_that_grow_no_state_are_static_at_first() -> None:
    sums: list[torch.Tensor] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        sums.append(x.detach().sum())
        return torch.cat([x, x], 0)

    compiled = smelt.compile(step)
    compiled(torch.ones(3, 4))
    assert smelt.counters["graphs"] == 1
    assert smelt.counters["sizes_traced"] == 0


def test_a_graph_that_would_break_with_symbols_keeps_its_sizes() -> None:
    def forward(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        keys = cache.update(0, x)
        return keys.new_tensor(list(range(x.shape[1]))).sum() + keys

    compiled = smelt.compile(forward)
    for length in (3, 4):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(compiled(x, Cache()), forward(x, Cache()))
    assert smelt.counters["graph_breaks"] == 0
