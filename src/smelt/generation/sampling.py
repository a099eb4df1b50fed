"""How the next token is chosen from the logits, in Hugging Face's order: penalty, temperature, top-k, top-p, min-p.

    logits [batch, vocabulary] → tokens [batch]

A token is sampled as `multinomial` does it: the probabilities are divided by exponential noise, and the largest wins.
The noise is drawn outside of the compiled program, so a generator gives the tokens that it gives `multinomial`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass

FILTERED = float("-inf")
LEAST_TEMPERATURE = 1e-30  # scores divided by less are infinite in float32


@dataclass(frozen=True, slots=True)
class SamplingKind:
    """What distinguishes the programs of two ways to sample; the numbers are tensors, except for `top_k`."""

    sample: bool = False
    top_k: int = 0
    top_p: bool = False
    min_p: bool = False
    penalty: bool = False


class SamplingNumbers(NamedTuple):
    """The numbers of a way to sample, as tensors without dimensions; those that its kind does not use are 1."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor


def sampling(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None, penalty: float | None
) -> tuple[SamplingKind, tuple[float, ...]]:
    """The kind and the numbers, checked. Filters that keep every token are left out."""
    if not temperature >= 0:
        raise SmeltError("SM004", f"temperature must be 0 (the most probable token) or more, not {temperature!r}")
    if 0 < temperature < LEAST_TEMPERATURE:
        raise SmeltError("SM004", f"temperature={temperature!r} is too close to 0", hint="set temperature=0")
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 0):
        raise SmeltError("SM004", f"top_k must be a number of tokens, not {top_k!r}")
    for name, value in (("top_p", top_p), ("min_p", min_p)):
        if value is not None and not 0 <= value <= 1:
            raise SmeltError("SM004", f"{name} must be from 0 to 1, not {value!r}")
    if penalty is not None and not penalty > 0:
        raise SmeltError("SM004", f"repetition_penalty must be positive, not {penalty!r}")
    if temperature == 0:
        for name, filtering in (("top_k", top_k), ("top_p", top_p), ("min_p", min_p)):
            if filtering is not None:
                raise SmeltError("SM004", f"{name} filters samples, and temperature is 0", hint="set temperature=1.0")
    kind = SamplingKind(
        sample=temperature > 0,
        top_k=top_k or 0,
        top_p=top_p is not None and top_p < 1,
        min_p=bool(min_p),
        penalty=penalty is not None and penalty != 1,
    )
    return kind, (temperature or 1.0, 1.0 if top_p is None else top_p, min_p or 0.0, penalty or 1.0)


def choose(logits: Tensor, kind: SamplingKind, numbers: SamplingNumbers, noise: Tensor, seen: Tensor) -> Tensor:
    """The next token of each row. `noise` is exponential, `seen` says which tokens the penalty applies to."""
    scores = logits.float()
    if kind.penalty:
        penalized = torch.where(scores < 0, scores * numbers.penalty, scores / numbers.penalty)
        scores = torch.where(seen, penalized, scores)
    if not kind.sample:
        return scores.argmax(-1)
    return (probabilities(scores, kind, numbers) / noise).argmax(-1)


def probabilities(scores: Tensor, kind: SamplingKind, numbers: SamplingNumbers) -> Tensor:
    """The distribution that tokens are sampled from."""
    scores = scores / numbers.temperature
    if kind.top_k:
        best = scores.topk(min(kind.top_k, scores.shape[-1])).values
        scores = scores.masked_fill(scores < best[:, -1:], FILTERED)
        if kind.top_p:
            scores = _top_p_of_best(scores, best, numbers.top_p)
    elif kind.top_p:
        scores = _top_p(scores, numbers.top_p)
    if kind.min_p:
        unfiltered = scores.softmax(-1)
        scores = scores.masked_fill(unfiltered < numbers.min_p * unfiltered.amax(-1, keepdim=True), FILTERED)
    return scores.softmax(-1)


def _top_p(scores: Tensor, top_p: Tensor) -> Tensor:
    """Filter the least probable tokens whose probabilities sum to at most 1 - top_p."""
    ascending, order = scores.sort(-1)
    is_dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    is_last = torch.arange(scores.shape[-1], device=scores.device) == scores.shape[-1] - 1
    is_dropped = is_dropped & ~is_last
    return scores.masked_fill(is_dropped.scatter(1, order, is_dropped), FILTERED)


def _top_p_of_best(scores: Tensor, best: Tensor, top_p: Tensor) -> Tensor:
    """The same where only `best`, in descending order, and tokens that tie with its last are unfiltered: no sort."""
    kept = scores.softmax(-1)
    shares = torch.exp(best - torch.logsumexp(scores, -1, keepdim=True))
    ties = ((kept > 0).sum(-1, keepdim=True) - (shares > 0).sum(-1, keepdim=True)) * shares[:, -1:]
    ascending = shares.flip(-1).cumsum(-1) + ties
    is_kept = (ascending > 1 - top_p).flip(-1)
    is_first = torch.arange(best.shape[-1], device=best.device) == 0
    least = torch.where(is_kept | is_first, best, -FILTERED).amin(-1, keepdim=True)
    return scores.masked_fill(scores < least, FILTERED)
