"""The two compiled programs of a generation: one for the prompt, one for each token after it.

    read_prompt(model, prompt, …)  → the first token, keys and values of each layer
    next_token(model, state, …)    → what is new; the tokens, keys and values are written in place
    check_drafts(model, state, …)  → the same for the tokens that an assistant drafted, all at a time

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
from smelt.base.options import Options
from smelt.capture import mark_dynamic
from smelt.generation.cache import InPlaceCache, PromptCache
from smelt.generation.sampling import SamplingKind, SamplingNumbers, choose

NO_TOKEN = -1
DRAFT_TOKENS = 4  # that an assistant computes before the model checks them


class Prompt(NamedTuple):
    """Token ids [batch, length]; without padding, `mask` and `positions` are None."""

    ids: Tensor
    mask: Tensor | None
    positions: Tensor | None


class State(NamedTuple):
    """The tensors that the program of a token reads. It writes to all from `output` on; `now` is replaced."""

    now: Tensor  # [5, batch]: see `Now`
    mask: Tensor  # [batch, capacity]: False for padding
    noise: Tensor  # [batch, vocabulary] or empty
    stop_tokens: Tensor
    pad_token: Tensor
    output: Tensor  # [batch, capacity]: the tokens of the prompts, then the new ones
    seen: Tensor  # [batch, vocabulary] or empty
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class Now(NamedTuple):
    """What changes with each token, for each row; one tensor, so that the host reads it by one copy."""

    token: Tensor  # the newest token, whose keys and values are not in the caches yet
    text_position: Tensor  # its position in its text, without padding
    is_finished: Tensor  # 1 after a stop token
    row: Tensor  # of the caches, for its keys and values; the same for all
    length: Tensor  # of the output, up to where all rows are finished; the same for all


class FirstToken(NamedTuple):
    """What the program of the prompt returns."""

    logits: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def store_token(logits: Tensor, state: State, kind: SamplingKind, numbers: SamplingNumbers, step: int) -> Tensor:
    """Choose a token, write it behind the newest one, and return what is new. `step`: 0 for the first token."""
    now = Now(*state.now)
    chosen = choose(logits, kind, numbers, state.noise, state.seen)
    was_finished = now.is_finished == 1
    token = torch.where(was_finished, state.pad_token, chosen)
    row = now.row + step
    state.output.index_copy_(1, row[:1], token[:, None])
    if kind.penalty:
        state.seen.scatter_(1, chosen[:, None], True)  # `pad_token` may lie outside of the vocabulary
    is_finished = was_finished | (token[:, None] == state.stop_tokens).any(-1)
    length = now.length + (~was_finished).any()
    return _packed(Now(token, now.text_position + step, is_finished.long(), row, length))


def store_checked(best: Tensor, ids: Tensor, rows: Tensor, state: State) -> Tensor:
    """Keep the drafted tokens that are the most probable ones, and the token after them; return what is new.

    `ids` are the newest token and the drafts behind it, `best` the most probable token after each. Tokens behind those
    that are kept are written, too; the next ones replace them.
    """
    now = Now(*state.now)
    state.output.index_copy_(1, rows + 1, best[None])
    steps = torch.arange(best.shape[0], device=best.device)
    is_wrong = torch.cat([best[:-1] != ids[1:], steps[:1] == 0])
    is_stop = (best[:, None] == state.stop_tokens).any(-1)
    first = torch.where(is_wrong | is_stop, steps, best.shape[0]).amin()
    is_first = steps == first
    token = torch.where(is_first, best, 0).sum()
    is_finished = (is_first & is_stop).any()
    kept = first + 1
    return _packed(
        Now(*(part.view(1) for part in (
            token, now.text_position[0] + kept, is_finished.long(), now.row[0] + kept, now.length[0] + kept
        )))
    )  # fmt: skip


def _packed(now: Now) -> Tensor:
    """`torch.stack(now)`, pointwise: a library call between the first write in place and the end might fail."""
    place = torch.arange(len(now), device=now.token.device)[:, None]
    packed = now[0]
    for number, part in enumerate(now[1:], 1):
        packed = torch.where(place == number, part, packed)
    return packed


class Programs:
    """The compiled programs of a model for a kind of sampling."""

    def __init__(self, model: torch.nn.Module, kind: SamplingKind, options: Mapping[str, Any]) -> None:
        accepted = forward_parameters(model)

        def forward(model: Any, prompt: Prompt, cache: Any, **arguments: Any) -> Tensor:
            named = {"attention_mask": prompt.mask, "position_ids": prompt.positions, "use_cache": True, **arguments}
            named = {name: value for name, value in named.items() if name in accepted}
            result = model(input_ids=prompt.ids, past_key_values=cache, **named)
            logits: Tensor = result.logits if hasattr(result, "logits") else result[0]
            return logits

        def read_prompt(model: Any, prompt: Prompt) -> FirstToken:
            cache = PromptCache()
            logits = forward(model, prompt, cache, logits_to_keep=1)
            return FirstToken(logits[:, -1], cache.keys, cache.values)

        def next_token(model: Any, state: State, numbers: SamplingNumbers) -> Tensor:
            now = Now(*state.now)
            cache = InPlaceCache(state.keys, state.values, now.row[0])
            token = torch.where(now.is_finished == 1, 0, now.token)  # `pad_token` may lie outside of the vocabulary
            logits = forward(model, Prompt(token[:, None], state.mask, now.text_position[:, None]), cache)
            return store_token(logits[:, -1], state, kind, numbers, 1)

        def check_drafts(model: Any, state: State, drafts: Tensor) -> Tensor:
            now = Now(*state.now)
            steps = torch.arange(DRAFT_TOKENS + 1, device=drafts.device)
            rows = now.row[0] + steps
            ids = torch.cat([now.token[:, None], drafts.index_select(1, rows[1:])], 1)
            cache = InPlaceCache(state.keys, state.values, now.row[0])
            logits = forward(model, Prompt(ids, state.mask, now.text_position[:, None] + steps), cache)
            return store_checked(logits[0].float().argmax(-1), ids[0], rows, state)

        self.read_prompt = compile_function(read_prompt, options=options)
        on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        graphs = {"cuda_graphs": "always"} if on_gpu else {}
        self.next_token = compile_function(next_token, options={**graphs, **options})
        self.check_drafts = compile_function(check_drafts, options={**graphs, **options})


_programs: "weakref.WeakKeyDictionary[torch.nn.Module, dict[Any, Programs]]" = weakref.WeakKeyDictionary()


def programs(model: torch.nn.Module, kind: SamplingKind, options: Mapping[str, Any]) -> Programs:
    """The programs of a model, kept for as long as the model lives."""
    Options.from_user(options)  # an error names what is wrong, before it is part of a key
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
    mask = torch.ones_like(ids, dtype=torch.bool) if prompt.mask is None else prompt.mask
    lengths = torch.full((rows,), length, device=device)
    return State(
        now=_packed(Now(ids[:, -1], mask.sum(-1), torch.zeros_like(lengths), lengths, lengths)),
        mask=_roomier(mask, 1, capacity, True),
        noise=torch.empty(rows if kind.sample else 0, vocabulary, device=device),
        stop_tokens=torch.tensor(ending.stop_tokens or [NO_TOKEN], dtype=torch.int64, device=device),
        pad_token=torch.tensor(ending.pad_token, device=device),
        output=_roomier(ids, 1, capacity),
        seen=seen,
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
