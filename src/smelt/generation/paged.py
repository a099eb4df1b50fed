"""Batches of texts that begin and end at different times, with keys and values in blocks of one memory.

    texts = PagedBatch(model, blocks=256)      # memory for 256 blocks of 16 tokens, for all texts together
    text = texts.add([3, 1, 4], room=100)      # computes the prompt, and the first token
    while texts:
        for text, token in texts.step(): …     # a token more for each text, by one compiled program

A text owns the blocks of its `table`; token n is row `table[n // 16] * 16 + n % 16` of each layer's keys and values.
The rows of block 0 belong to no text: places of the batch without a text write there.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from smelt.api import compile as compile_function
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.capture import mark_dynamic
from smelt.generation.programs import Prompt, forward_parameters, programs
from smelt.generation.sampling import SamplingKind

BLOCK_TOKENS = 16


class PagedCache:
    """Rows [rows, heads, size] of keys and values for each layer. The model writes those of new tokens to `written`
    [batch], and reads the rows `read` [batch, length]."""

    is_compileable = True

    def __init__(self, keys: list[Tensor], values: list[Tensor], written: Tensor, read: Tensor) -> None:
        self.keys, self.values, self.written, self.read = keys, values, written, read
        self.is_sliding = (False,) * len(keys)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        memories = self.keys[layer_idx], self.values[layer_idx]
        for memory, new in zip(memories, (keys, values), strict=True):
            memory.index_copy_(0, self.written, new[:, :, 0])
        everything = [memory[self.read].transpose(1, 2) for memory in memories]
        return everything[0], everything[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.read.shape[1], 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.read.shape[1]


@dataclass(slots=True, eq=False)
class Text:
    """A text of a batch: its blocks, its tokens, and how many it may have."""

    table: list[int]
    tokens: list[int]
    most: int


class PagedBatch:
    """Texts of a model that are generated together, greedily. `places`: texts that one program computes, at most;
    others wait. A text takes blocks for its prompt and its `room` when it is added."""

    def __init__(self, model: torch.nn.Module, blocks: int, places: int = 8) -> None:
        forward_parameters(model)
        self.model, self.free, self.places = model, list(range(blocks - 1, 0, -1)), places
        self.rows = blocks * BLOCK_TOKENS
        window = _window(model)
        if window is not None and window < self.capacity:
            raise SmeltError(
                "SM004",
                f"{type(model).__name__} attends to {window} tokens, and texts of the batch can be longer: "
                f"{self.capacity} tokens",
                hint="smelt.generate applies windows; a batch of fewer blocks needs none",
            )
        self.texts: list[Text] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.read_prompt = programs(model, SamplingKind(), {}).read_prompt

        def next_tokens(
            model: Any, keys: list[Tensor], values: list[Tensor], tokens: Tensor, positions: Tensor, tables: Tensor
        ) -> Tensor:
            inside = torch.arange(BLOCK_TOKENS, device=tables.device)
            read = (tables[:, :, None] * BLOCK_TOKENS + inside).flatten(1)
            written = read.gather(1, positions[:, None])[:, 0]
            mask = torch.arange(read.shape[1], device=read.device) <= positions[:, None]
            cache = PagedCache(keys, values, written, read)
            result = model(
                input_ids=tokens[:, None], position_ids=positions[:, None], attention_mask=mask[:, None, None],
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            logits: Tensor = result.logits
            return logits[:, -1].argmax(-1)

        self.next_tokens = compile_function(next_tokens)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def capacity(self) -> int:
        """Tokens of all texts together."""
        return self.rows - BLOCK_TOKENS

    def fits(self, tokens: int) -> bool:
        """Whether a text of so many tokens, new ones included, has a place and blocks."""
        return len(self.texts) < self.places and -(-tokens // BLOCK_TOKENS) <= len(self.free)

    def add(self, ids: list[int], room: int) -> Text:
        """Begin a text of a prompt and up to `room` new tokens. Its first new token is its last one afterwards."""
        if not ids or room < 1 or not self.fits(len(ids) + room):
            raise SmeltError("SM004", f"a text of {len(ids)} tokens and {room} new ones has no place in the batch")
        blocks = -(-(len(ids) + room) // BLOCK_TOKENS)
        text = Text(self.free[-blocks:], list(ids), len(ids) + room)
        prompt = torch.tensor([ids], device=next(self.model.parameters()).device)
        mark_dynamic(prompt, 1)
        with torch.no_grad():
            first = self.read_prompt(self.model, Prompt(prompt, None, None))
            if not self.keys:
                self.keys, self.values = (self._memory(of_layers) for of_layers in (first.keys, first.values))
            rows = [block * BLOCK_TOKENS + row for block in text.table for row in range(BLOCK_TOKENS)][: len(ids)]
            places = torch.tensor(rows, device=prompt.device)
            for memories, new in ((self.keys, first.keys), (self.values, first.values)):
                for memory, each in zip(memories, new, strict=True):
                    memory.index_copy_(0, places, each[0].transpose(0, 1))
        text.tokens.append(int(first.logits[0].argmax()))
        del self.free[-blocks:]
        self.texts.append(text)
        return text

    def step(self) -> Iterator[tuple[Text, int]]:
        """Compute a token more for each text; gives the new tokens. Texts that are full are removed."""
        for text in [text for text in self.texts if len(text.tokens) >= text.most]:
            self.remove(text)
        texts = self.texts[: self.places]
        if not texts:
            return
        longest = max(-(-len(text.tokens) // BLOCK_TOKENS) for text in texts)
        rows = [(text.tokens[-1], len(text.tokens) - 1, text.table[:longest]) for text in texts]
        rows += [(0, 0, [])] * (self.places - len(rows))
        device = self.keys[0].device
        tokens, positions = (torch.tensor([row[part] for row in rows], device=device) for part in (0, 1))
        tables = torch.tensor([table + [0] * (longest - len(table)) for _, _, table in rows], device=device)
        mark_dynamic(tables, 1)
        with torch.no_grad():
            chosen = self.next_tokens(self.model, self.keys, self.values, tokens, positions, tables).tolist()
        for text, token in zip(texts, islice(chosen, len(texts)), strict=True):
            text.tokens.append(token)
            yield text, token

    def remove(self, text: Text) -> None:
        """End a text: its blocks are free."""
        self.texts.remove(text)
        self.free += text.table

    def _memory(self, of_layers: list[Tensor]) -> list[Tensor]:
        """Rows for all blocks of each layer, like its keys or values [batch, heads, length, size] of a prompt."""
        return [each.new_zeros(self.rows, each.shape[1], each.shape[3]) for each in of_layers]


def _window(model: torch.nn.Module) -> int | None:
    """The fewest tokens that a layer attends to, if there is such a limit: the mask of a step has none."""
    config = getattr(model, "config", None)
    if all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ("unknown",)):
        return None
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((window for window in windows if window is not None), default=None)
