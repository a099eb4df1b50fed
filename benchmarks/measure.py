"""What is measured of a training step, by the same means for every backend: time, saved bytes, error.

Nothing here knows what a backend is: a step is a callable, a result is tensors.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    per_round: float = 0.1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per step of each callable, one figure a round: they are interleaved, so a busy minute hits them all.

    In a round each runs as often as fits `per_round` seconds, at least once. Warm them up first.
    """
    repeats = {}
    for name, step in steps.items():
        began = clock()
        step()
        repeats[name] = max(1, int(per_round / max(clock() - began, 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            began = clock()
            for _ in range(repeats[name]):
                step()
            seconds[name].append((clock() - began) / repeats[name])
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], of: str, to: str) -> float:
    """How much faster `to` is than `of`: the median over rounds of their quotient within a round."""
    return statistics.median(a / b for a, b in zip(seconds[of], seconds[to], strict=True))


def saved_bytes(loss: torch.Tensor, parameters: Iterable[torch.Tensor]) -> int:
    """Bytes the autograd graph under `loss` keeps alive: each storage once, parameters not counted, inputs counted.

    The graph is walked, so the run itself is undisturbed: what C++ nodes show as `_saved_*`, what Python nodes
    (`torch.autograd.Function`) saved or hold as attributes of their context.
    """
    excluded = {p.untyped_storage().data_ptr() for p in parameters}
    storages: dict[int, int] = {}
    for node in _nodes(loss.grad_fn):
        for tensor in _tensors_of(node):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in excluded:
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _nodes(root: object) -> Iterator[object]:
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            continue  # holds the leaf itself, saves nothing
        yield node
        waiting += [parent for parent, _ in getattr(node, "next_functions", ())]


def _tensors_of(node: object) -> Iterator[torch.Tensor]:
    held: list[object] = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
    held.append(getattr(node, "saved_tensors", ()))
    held += getattr(node, "__dict__", {}).values()
    while held:
        value = held.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            held += value
        elif isinstance(value, dict):
            held += value.values()


@dataclass(frozen=True, slots=True)
class Error:
    """Distance from the float64 run. `scaled` is the worst over all tensors; `within` is the design's rule."""

    scaled: float
    within: bool


def errors(
    found: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], ulps: int = 4
) -> Error:
    """`found` against the float64 `exact`: per tensor, at most twice eager's error plus a few ulp of its maximum.

    Tensors of which eager has not one digit right, such as gradients that are zero but for rounding, say nothing.
    """
    worst, within = 0.0, True
    for mine, theirs, truth in zip(found, eager, exact, strict=True):
        scale = max(truth.abs().max().item(), torch.finfo(mine.dtype).tiny)
        have = (mine.double() - truth).abs().max().item() / scale
        eagers = (theirs.double() - truth).abs().max().item() / scale
        if eagers >= 1 and have == have:
            continue
        allowed = 2 * eagers + ulps * torch.finfo(mine.dtype).eps
        worst = max(worst, have) if have == have else float("inf")
        within = within and have <= allowed  # a NaN is not within
    return Error(worst, within)
