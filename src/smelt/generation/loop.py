"""`smelt.generate`: the prompt, then a compiled program per token, without waiting for the device between tokens.

    ids [batch, length] → [batch, length + new tokens]

The host launches programs ahead of the device: it reads whether a row still runs some tokens later, and drops the
tokens computed in between. Buffers have room for all tokens, or grow by doubling.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from smelt.base.errors import SmeltError
from smelt.device.host_library import HOST
from smelt.generation.programs import Programs, Prompt, first_state, mark_lengths, programs, store_token, with_room
from smelt.generation.sampling import SamplingKind, SamplingNumbers, sampling

FIRST_ROOM_TOKENS = 512  # buffers begin with room for so many new tokens: attention reads all of a buffer
ROOM_MULTIPLE = 64
CHECKED_EVERY_TOKENS = 4  # without a streamer: copying the status takes the host 10 µs
COPIES_IN_FLIGHT = 2


class Streamer(Protocol):
    """What Hugging Face's streamers implement."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


def generate(
    model: torch.nn.Module,
    ids: Tensor,
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    stop_tokens: int | Sequence[int] | None = None,
    pad_token: int | None = None,
    attention_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    streamer: Streamer | None = None,
    options: Mapping[str, Any] | None = None,
) -> Tensor:
    """Generate text: returns the prompts `ids` [batch, length] with the new tokens appended.

    The loop is compiled: one program reads the prompts, one computes each token, chooses it and writes the cache in
    place. `model` is a Hugging Face model or a module with the same arguments: `forward(input_ids, past_key_values,
    …)`, which calls `past_key_values.update(keys, values, layer)`. It need not be compiled.

    - `max_new_tokens` bounds the number of new tokens.
    - `temperature=0` takes the most probable token, and the tokens are those of `model.generate(do_sample=False)`.
      Above 0, tokens are sampled; `top_k`, `top_p` and `min_p` filter the distribution, as in Hugging Face's loop.
    - `repetition_penalty` divides the scores of tokens that are in the text.
    - `stop_tokens` end a text, by default those of the model's `generation_config`; `[]`: none. Then `pad_token`
      follows, until all texts have ended.
    - `attention_mask` [batch, length] is 0 for padding, which must be on the left.
    - `generator` draws the random numbers, by default PyTorch's.
    - `streamer` gets the prompts and then each token, as Hugging Face's streamers do.
    - `options` are the options of `smelt.compile`. On a GPU, `cuda_graphs` is `"always"` unless they set it.
    """
    kind, numbers = sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise SmeltError("SM004", f"max_new_tokens must be a positive int, not {max_new_tokens!r}")
    stops = _stop_tokens(model, stop_tokens)
    settings = Settings(max_new_tokens, stops, _pad_token(model, pad_token, stops), generator)
    with torch.no_grad():
        prompt = _prompt(ids, attention_mask)
        run = Run(programs(model, kind, options or {}), model, prompt, kind, numbers, settings)
        if streamer is None:
            for _ in run.columns(every=CHECKED_EVERY_TOKENS):
                pass
            return run.result()
        streamer.put(ids.cpu())
        for column in run.columns(every=1):
            streamer.put(column)
        streamer.end()
        return run.result()


class Settings(NamedTuple):
    """The arguments of a call that are not about sampling."""

    max_new_tokens: int
    stop_tokens: list[int]
    pad_token: int
    generator: torch.Generator | None


class Run:
    """One call of `generate`: the tensors of its state, and how many columns of the output are computed."""

    def __init__(
        self, programs: Programs, model: torch.nn.Module, prompt: Prompt, kind: SamplingKind,
        numbers: tuple[float, ...], settings: Settings,
    ) -> None:  # fmt: skip
        self.programs, self.model, self.settings = programs, model, settings
        device = prompt.ids.device
        self.numbers = SamplingNumbers(*(torch.tensor(number, device=device) for number in numbers))
        self.length = prompt.ids.shape[1]
        self.last_length = self.length + settings.max_new_tokens
        first = programs.read_prompt(model, mark_lengths(prompt))
        self.state = first_state(prompt, first, kind, settings, self._room(FIRST_ROOM_TOKENS))
        self._draw()
        store_token(first.logits, self.state, kind, self.numbers)
        self.length += 1

    def columns(self, every: int) -> Iterator[Tensor]:
        """Generate; gives each `every`-th column of new tokens [batch], on the host, some tokens late on a GPU."""
        reader = StatusReader(self.state.status)
        while self.length < self.last_length:
            if self.length % every == 0:
                reader.copy(self.state.status)
                if (yield from reader.columns(wait_for_all=False)):
                    return
            self._next()
        reader.copy(self.state.status)
        yield from reader.columns(wait_for_all=True)

    def result(self) -> Tensor:
        """The prompts and the new tokens, up to the last stop token."""
        return self.state.output[:, : int(self.state.length)].clone()

    def _next(self) -> None:
        if self.length == self.state.output.shape[1]:
            self.state = with_room(self.state, self._room(self.length))
        self._draw()
        self.programs.next_token(self.model, self.state, self.numbers)
        self.length += 1

    def _draw(self) -> None:
        if self.state.noise.numel():
            self.state.noise.exponential_(generator=self.settings.generator)

    def _room(self, tokens: int) -> int:
        """The capacity for so many tokens more: a multiple, so that few capacities occur."""
        needed = min(self.last_length, self.length + tokens)
        return -(-needed // ROOM_MULTIPLE) * ROOM_MULTIPLE


class StatusReader:
    """Copies the status of a run to the host, and reads it when the copy has arrived."""

    def __init__(self, status: Tensor) -> None:
        self.is_gpu = status.is_cuda
        self.copies: deque[tuple[Tensor, Any]] = deque()

    def copy(self, status: Tensor) -> None:
        if not self.is_gpu:
            self.copies.append((status.clone(), None))
            return
        copied = status.to(HOST, non_blocking=True)
        event: Any = torch.cuda.Event  # which PyTorch does not type
        event = event()
        event.record()
        self.copies.append((copied, event))

    def columns(self, wait_for_all: bool) -> Generator[Tensor, None, bool]:
        """The columns that have arrived; returns whether all texts have ended."""
        while self.copies:
            status, event = self.copies[0]
            if event is not None:
                if not wait_for_all and len(self.copies) <= COPIES_IN_FLIGHT and not event.query():
                    return False
                event.synchronize()
            self.copies.popleft()
            yield status[:-1]
            if not status[-1]:
                return True
        return False


def _prompt(ids: Tensor, mask: Tensor | None) -> Prompt:
    """The prompt, checked, with the positions that padding implies. A mask without padding is dropped."""
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise SmeltError("SM004", f"ids must be integers of shape [batch, length], not {ids.dtype} {tuple(ids.shape)}")
    ids = ids.to(torch.int64)
    positions = None
    if mask is not None:
        if mask.shape != ids.shape:
            raise SmeltError(
                "SM004", f"attention_mask must have the shape of ids, {tuple(ids.shape)}, not {tuple(mask.shape)}"
            )
        mask = mask.to(torch.bool)
        if not bool(mask[:, -1].all()):
            raise SmeltError("SM004", "a prompt ends with padding", hint='pad on the left: padding_side="left"')
        if bool(mask.all()):
            mask = None
        else:
            positions = (mask.long().cumsum(-1) - 1).masked_fill(~mask, 0)
    return Prompt(ids, mask, positions)


def _stop_tokens(model: torch.nn.Module, tokens: int | Sequence[int] | None) -> list[int]:
    if tokens is None:
        tokens = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if tokens is None:
        return []
    return [tokens] if isinstance(tokens, int) else list(tokens)


def _pad_token(model: torch.nn.Module, token: int | None, stop_tokens: list[int]) -> int:
    if token is None:
        token = getattr(getattr(model, "generation_config", None), "pad_token_id", None)
    return token if token is not None else stop_tokens[0] if stop_tokens else 0
