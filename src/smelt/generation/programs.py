"""The two compiled programs of a generation: one for the prompt, one for each token after it.

    read_prompt(model, prompt, …)  → the first token, keys and values of each layer
    next_token(model, state, …)    → nothing: it writes to the tensors of `state`, always the same ones

Each model has its own, and so has each kind of sampling. Lengths are symbolic from the first call on.
"""

import inspect
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from smelt.api import compile as compile_function
from smelt.base.errors import SmeltError
from smelt.capture import mark_dynamic
from smelt.generation.cache import InPlaceCache, PromptCache
from smelt.generation.sampling import SamplingKind, SamplingNumbers, choose


class Prompt(NamedTuple):
    """Token ids [batch, length]; without padding, `mask` and `positions` are None."""

    ids: Tensor
    mask: Tensor | None
    positions: Tensor | None


class State(NamedTuple):
    """The tensors that the program of a token reads and writes. `output` and `mask` have the caches' capacity."""

    token: Tensor  # [batch, 1]: the newest token, whose keys and values are not in the caches yet
    position: Tensor  # []: its row in the caches
    positions: Tensor  # [batch, 1]: its position in its text, without padding
    mask: Tensor  # [batch, capacity]: False for padding
    output: Tensor  # [batch, capacity]: the tokens of the prompts, then the new ones
    is_finished: Tensor  # [batch]: whether a stop token came
    status: Tensor  # [batch + 1]: the newest token, and whether a row is not finished
    length: Tensor  # []: of the output, up to where all rows were finished
    noise: Tensor  # [batch, vocabulary] or empty
    seen: Tensor  # [batch, vocabulary] or empty
    stop_tokens: Tensor
    pad_token: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class FirstToken(NamedTuple):
    """What the program of the prompt returns."""

    logits: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def store_token(logits: Tensor, state: State, kind: SamplingKind, numbers: SamplingNumbers) -> None:
    """Choose a token, write it at the row `position` of the output, and note which rows are finished."""
    token = choose(logits, kind, numbers, state.noise, state.seen)
    token = torch.where(state.is_finished, state.pad_token, token)
    column = token[:, None]
    state.output.index_copy_(1, state.position.view(1), column)
    if kind.penalty:
        state.seen.scatter_(1, column, True)
    state.length.add_((~state.is_finished).any())
    is_finished = state.is_finished | (column == state.stop_tokens).any(-1)
    state.is_finished.copy_(is_finished)
    state.status.copy_(torch.cat([token, (~is_finished).any()[None]]))
    state.token.copy_(column)


class Programs:
    """The compiled programs of a model for a kind of sampling."""

    def __init__(self, model: torch.nn.Module, kind: SamplingKind, options: Mapping[str, Any]) -> None:
        accepted = forward_parameters(model)

        def forward(model: Any, prompt: Prompt, cache: Any, **arguments: Any) -> Tensor:
            named = {"attention_mask": prompt.mask, "position_ids": prompt.positions, "use_cache": True, **arguments}
            named = {name: value for name, value in named.items() if name in accepted}
            result = model(input_ids=prompt.ids, past_key_values=cache, **named)
            logits: Tensor = result.logits if hasattr(result, "logits") else result[0]
            return logits[:, -1]

        def read_prompt(model: Any, prompt: Prompt) -> FirstToken:
            cache = PromptCache()
            logits = forward(model, prompt, cache, logits_to_keep=1)
            return FirstToken(logits, cache.keys, cache.values)

        def next_token(model: Any, state: State, numbers: SamplingNumbers) -> None:
            cache = InPlaceCache(state.keys, state.values, state.position)
            logits = forward(model, Prompt(state.token, state.mask, state.positions), cache)
            state.position.add_(1)
            state.positions.add_(1)
            store_token(logits, state, kind, numbers)

        self.read_prompt = compile_function(read_prompt, options=options)
        on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        graphs = {"cuda_graphs": "always"} if on_gpu else {}
        self.next_token = compile_function(next_token, options={**graphs, **options})


_programs: "weakref.WeakKeyDictionary[torch.nn.Module, dict[Any, Programs]]" = weakref.WeakKeyDictionary()


def programs(model: torch.nn.Module, kind: SamplingKind, options: Mapping[str, Any]) -> Programs:
    """The programs of a model, kept for as long as the model lives."""
    by_kind = _programs.setdefault(model, {})
    key = kind, tuple(sorted(options.items()))
    if key not in by_kind:
        by_kind[key] = Programs(model, kind, options)
    return by_kind[key]


def forward_parameters(model: torch.nn.Module) -> frozenset[str]:
    """The arguments that the model's forward accepts; an error if it has no cache that can be written in place."""
    parameters = inspect.signature(model.forward).parameters
    config = getattr(model, "config", None)
    reason = ""
    if "past_key_values" not in parameters:
        reason = "its forward has no argument past_key_values"
    elif getattr(config, "is_encoder_decoder", False):
        reason = "it has an encoder"
    elif any(
        "linear" in kind or "mamba" in kind or "conv" in kind for kind in getattr(config, "layer_types", None) or ()
    ):
        reason = "some of its layers have recurrent states"
    elif "flash" in str(getattr(config, "_attn_implementation", "")):
        reason = f"its attention is {config._attn_implementation}"  # type: ignore[union-attr]
    if reason:
        raise SmeltError(
            "SM004",
            f"smelt.generate cannot write the cache of {type(model).__name__} in place: {reason}",
            hint="compile the model, and call its generate: model = smelt.compile(model); model.generate(ids)",
        )
    return frozenset(parameters)


class Ending(Protocol):
    """When texts end, and what follows."""

    @property
    def stop_tokens(self) -> list[int]: ...

    @property
    def pad_token(self) -> int: ...


def mark_lengths(prompt: Prompt) -> Prompt:
    """Make the length symbolic from the first call on."""
    for tensor in prompt:
        if tensor is not None:
            mark_dynamic(tensor, 1)
    return prompt


def first_state(prompt: Prompt, first: FirstToken, kind: SamplingKind, ending: Ending, capacity: int) -> State:
    """The state after the prompt, before the first token is chosen."""
    ids, device = prompt.ids, prompt.ids.device
    rows, length = ids.shape
    vocabulary = first.logits.shape[-1]
    seen = torch.zeros(rows if kind.penalty else 0, vocabulary, dtype=torch.bool, device=device)
    if kind.penalty:
        seen.scatter_(1, ids, True)
    positions = (
        torch.full((rows, 1), length, device=device) if prompt.mask is None else prompt.mask.sum(-1, keepdim=True)
    )
    return State(
        token=ids[:, -1:].clone(),
        position=torch.tensor(length, device=device),
        positions=positions,
        mask=_roomier(
            torch.ones_like(ids, dtype=torch.bool) if prompt.mask is None else prompt.mask, 1, capacity, True
        ),
        output=_roomier(ids, 1, capacity),
        is_finished=torch.zeros(rows, dtype=torch.bool, device=device),
        status=torch.zeros(rows + 1, dtype=torch.int64, device=device),
        length=torch.tensor(length, device=device),
        noise=torch.empty(rows if kind.sample else 0, vocabulary, device=device),
        seen=seen,
        stop_tokens=torch.tensor(ending.stop_tokens, dtype=torch.int64, device=device),
        pad_token=torch.tensor(ending.pad_token, device=device),
        keys=tuple(_roomier(keys, 2, capacity) for keys in first.keys),
        values=tuple(_roomier(values, 2, capacity) for values in first.values),
    )


def with_room(state: State, capacity: int) -> State:
    """The state with larger buffers."""
    return state._replace(
        mask=_roomier(state.mask, 1, capacity, True),
        output=_roomier(state.output, 1, capacity),
        keys=tuple(_roomier(keys, 2, capacity) for keys in state.keys),
        values=tuple(_roomier(values, 2, capacity) for values in state.values),
    )


def _roomier(tensor: Tensor, dim: int, capacity: int, fill: Any = 0) -> Tensor:
    """A copy with `capacity` rows. The new ones are numbers: masked rows still take part in products."""
    shape = [*tensor.shape[:dim], capacity, *tensor.shape[dim + 1 :]]
    larger = torch.full(shape, fill, dtype=tensor.dtype, device=tensor.device)
    larger.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    mark_dynamic(larger, dim)
    return larger
