"""The two functions that `export_generation` exports, and the cache that they write. Capture goes through this file."""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

# Their types allow for layers of other kinds.
_Cache: Any = Cache
_Layer: Any = CacheLayerMixin


class FileLayer(_Layer):  # type: ignore[misc]  # of any type
    """Keys and values of one layer, with room for `length` tokens, written in place from `position` on. A sliding
    window is a mask over them."""

    is_compileable = True
    is_sliding = False

    def __init__(self, length: int, position: torch.Tensor) -> None:
        super().__init__()
        self.length, self.position = length, position

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads = key_states.shape[:2]
        self.keys = key_states.new_zeros(batch, heads, self.length, key_states.shape[-1])
        self.values = value_states.new_zeros(batch, heads, self.length, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        places = torch.arange(key_states.shape[2], device=key_states.device) + self.position
        self.keys.index_copy_(2, places, key_states)
        self.values.index_copy_(2, places, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> Any:
        return self.position

    def get_max_length(self) -> int:
        return self.length

    get_max_cache_shape = get_max_length


class GenerationSteps(torch.nn.Module):
    """A model with its cache, in buffers: names of the file's state are theirs."""

    position: torch.Tensor

    def __init__(self, model: Any, max_length: int, batch: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("position", torch.zeros((), dtype=torch.int64, device=next(model.parameters()).device))
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        self.cache = _Cache(layers=[FileLayer(max_length, self.position) for _ in range(layers)])
        with torch.no_grad():  # the model's own code says how large keys and values are
            model(input_ids=self.position.expand(batch, 2), past_key_values=self.cache, use_cache=True)
        for number, layer in enumerate(self.cache.layers):
            self.register_buffer(f"keys{number}", layer.keys.zero_())
            self.register_buffer(f"values{number}", layer.values.zero_())

    def prefill(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest next token of each text, and the logits of all."""
        with torch.no_grad():
            output = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            self.position.add_(ids.shape[1])
            logits = output.logits[:, -1].float()
            return logits.argmax(-1), logits

    def decode(self, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same after one more token."""
        return self.prefill(token[:, None])
