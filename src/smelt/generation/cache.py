"""Caches of keys and values that models with Hugging Face's cache protocol read and write.

    PromptCache     records the keys and values of a prompt: the first call of a model
    InPlaceCache    buffers [batch, heads, capacity, size]; new rows are written at `position`, a tensor, so that the
                    same compiled program serves every position

Sliding windows need no cache of their own: the buffers contain all positions, and the model's mask applies the window.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.base.errors import SmeltError


class PromptCache:
    """Records what each layer computes for the prompt."""

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if layer_idx != len(self.keys):
            raise SmeltError(
                "SM004",
                "smelt.generate needs layers that write the cache in order: "
                f"layer {layer_idx} follows {len(self.keys)} layers",
                hint="compile the model, and call its generate",
            )
        self.keys.append(keys)
        self.values.append(values)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1


class InPlaceCache:
    """Buffers that the model writes new keys and values to, at `position`."""

    is_compileable = True

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], position: Tensor) -> None:
        self.keys, self.values, self.position = keys, values, position
        self.is_sliding = (False,) * len(keys)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        length = keys.shape[2]
        rows = self.position.view(1) if length == 1 else torch.arange(length, device=keys.device) + self.position
        self.keys[layer_idx].index_copy_(2, rows, keys)
        self.values[layer_idx].index_copy_(2, rows, values)
        return self.keys[layer_idx], self.values[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        return self.position

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        return self.position

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.keys[layer_idx].shape[2], 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.keys[layer_idx or 0].shape[2]
