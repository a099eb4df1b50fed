"""`smelt.generate`: the prompt, then a compiled program per token, without waiting for the device between tokens.

    ids [batch, length] → [batch, length + new tokens]

The host launches programs ahead of the device: it reads whether a row still runs some tokens later, and drops the
tokens computed in between. Buffers have room for all tokens, or grow by doubling.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from smelt.base.errors import SmeltError
from smelt.generation.programs import Prompt, forward_parameters, programs
from smelt.generation.run import Run, Settings
from smelt.generation.sampling import SamplingKind, sampling
from smelt.generation.speculation import SpeculativeRun

CHECKED_EVERY_TOKENS = 4  # without a streamer: copying the status takes the host 10 µs


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
    assistant: torch.nn.Module | None = None,
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
    - `assistant`, a smaller model with the same tokens, drafts tokens that `model` checks together. The tokens are the
      same as without it. For one prompt and `temperature=0`.
    - `options` are the options of `smelt.compile`. On a GPU, `cuda_graphs` is `"always"` unless they set it.
    """
    kind, numbers = sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise SmeltError("SM004", f"max_new_tokens must be a positive int, not {max_new_tokens!r}")
    stops = _stop_tokens(model, stop_tokens)
    settings = Settings(max_new_tokens, stops, _pad_token(model, pad_token, stops), generator)
    with torch.no_grad():
        prompt = _prompt(ids, attention_mask)
        for each in (model, assistant):
            if prompt.mask is not None and each is not None and "attention_mask" not in forward_parameters(each):
                raise SmeltError("SM004", f"the forward of {type(each).__name__} has no argument attention_mask")
        run = Run(programs(model, kind, options or {}), model, prompt, kind, numbers, settings)
        columns = run.columns(every=CHECKED_EVERY_TOKENS if streamer is None else 1)
        if assistant is not None:
            if kind != SamplingKind() or len(ids) != 1:
                raise SmeltError("SM004", "an assistant drafts for one prompt, temperature=0 and no penalty")
            drafting = Run(programs(assistant, kind, options or {}), assistant, prompt, kind, numbers, settings)
            columns = SpeculativeRun(run, drafting).columns()
        if streamer is not None:
            streamer.put(ids.cpu())
        for column in columns:
            if streamer is not None:
                streamer.put(column)
        if streamer is not None:
            streamer.end()
        return run.result()


def _prompt(ids: Tensor, mask: Tensor | None) -> Prompt:
    """The prompt, checked, with the positions that padding implies. A mask without padding is dropped."""
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise SmeltError("SM004", f"ids must be integers of shape [batch, length], not {ids.dtype} {tuple(ids.shape)}")
    ids = ids.detach().to(torch.int64)  # not the caller's object: its length is marked as dynamic
    positions = None
    if mask is not None:
        if mask.shape != ids.shape:
            raise SmeltError(
                "SM004", f"attention_mask must have the shape of ids, {tuple(ids.shape)}, not {tuple(mask.shape)}"
            )
        mask = mask.detach().to(torch.bool)
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
