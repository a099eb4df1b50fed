"""How far off generated code may be: element by element, twice eager's error and four units in the last place.

    |mine - true|  <=  2 · |eager - true|  +  4 ulp of true

What is true: eager in float64 on the same numbers, for float32 and the 16-bit floats. For float64 it is eager itself:
three times its error then, since what is within twice of the truth is within three times of eager.

One run says little about eager's error where terms cancel: of two sums that are both off by an ulp of their summands,
one comes out exact by luck. So where an element fails by the error of that one run, eager is run again with inputs, and
gradients of its results, that are up to one part in 256 smaller (`near`), each time against float64 on the same
numbers, and its error at that element is the worst of those runs. Eager runs as it might as well have rounded then
(`Chance`): sums in another order, 16-bit results to either neighbour. Other inputs alone do not show that: order is a
matter of the sizes of terms, which stay, and in 16 bits there are no other inputs nearby. (Two terms that eager rounds
to the same 16 bits cancel to nothing; what is computed in float32 between operators need not round as often.)

Of half a million elements some are those where 32 runs are lucky throughout. What fails by them is given seven times as
many: that makes eager's error no larger than it may be, only known better. Where four are enough there are no more.

In float64 there is nothing more precise to run. There eager's error is taken to be the largest of three: that of
float32 in proportion; how far apart its results are when it adds up otherwise; and by how much they move (the median,
so that a jump at a point does not count) when its inputs move by one unit in the last place: within that, neither
result is better than the other.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch

from tests.ops_db.chance import Chance, nudged

ULPS = 4
RUNS = (0, 4, 32, 224)
"""How many runs of eager are looked at, for as long as something is beyond what they allow."""
_TO_DOUBLE = 2.0**-29  # one unit in the last place of float64 in those of float32


def near(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every element smaller by a random part of one in 256: signs and bounds stay what they are, and so do whole
    numbers, which may be labels."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or tensor.layout is not torch.strided:
        return tensor
    if tensor.dtype.is_complex:
        return torch.view_as_complex(near(torch.view_as_real(tensor.resolve_conj()).contiguous(), generator))
    part = torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu").to(tensor.device) / 256
    return torch.where(tensor == tensor.round(), tensor, (tensor.to(torch.float64) * (1 - part)).to(tensor.dtype))


def as_numbers(value: torch.Tensor | None) -> torch.Tensor | None:
    """The numbers of a tensor in float64, complex ones as pairs; None of what has none."""
    if value is None or value.layout is not torch.strided:
        return None
    value = value.detach().resolve_conj().resolve_neg()
    if value.dtype.is_complex:
        return torch.view_as_real(value).to(torch.float64)
    return value.to(torch.float64) if value.dtype.is_floating_point else None


Change = Callable[[torch.Tensor], torch.Tensor]
Results = list[torch.Tensor | None]
Mode = AbstractContextManager[object]
Run = Callable[[Change, torch.dtype | None, bool, Mode], Results]


def eager_errors(run: Run, *, double: bool, seeds: Iterable[int] = range(RUNS[2])) -> Results:
    """How far off eager is at each element of each of its results. `run(change, dtype, tangents, mode)` gives them for
    changed inputs, as they are or in another dtype, and with changed gradients of the results if `tangents`; what it
    computes, but not those inputs and gradients, within `mode`. `double`: the inputs are in float64 already."""
    errors: Results = []
    moves: list[Results] = []
    orders: Results = []
    here = run(_unchanged, None, False, nullcontext()) if double else []
    for seed in seeds:

        def change(tensor: torch.Tensor, seed: int = seed) -> torch.Tensor:
            return near(_rounded(tensor) if double else tensor, torch.Generator().manual_seed(seed))

        def beside(tensor: torch.Tensor, seed: int = seed) -> torch.Tensor:
            return nudged(tensor, torch.Generator().manual_seed(seed))

        if double:
            moved, other = run(beside, None, False, nullcontext()), run(_unchanged, None, False, Chance(seed))
            moves.append([_apart(a, b) for a, b in zip(moved, here, strict=False)])
            again = [_apart(a, b) for a, b in zip(other, here, strict=False)]
            orders = worst(orders, again) if orders else again
        rough = run(change, torch.float32 if double else None, True, Chance(seed))
        fine = run(change, torch.float64, True, nullcontext())
        found = [_apart(a, b) for a, b in zip(rough, fine, strict=False)]
        errors = worst(errors, found) if errors else found
    if not double:
        return errors
    scaled = [None if error is None else error * _TO_DOUBLE for error in errors]
    spreads = [_median(list(draws)) for draws in zip(*moves, strict=False)]
    return worst(worst(scaled, spreads), orders)


def worst(a: Results, b: Results) -> Results:
    """The larger of two errors at each element."""
    return [_largest(one, other) for one, other in zip(a, b, strict=False)]


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers of float64 as float32 has them."""
    return tensor.to({torch.float64: torch.float32, torch.complex128: torch.complex64}.get(tensor.dtype, tensor.dtype))


def _apart(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    a, b = as_numbers(a), as_numbers(b)
    if a is None or b is None or a.shape != b.shape:
        return None
    return (a - b).abs().nan_to_num(0.0, 0.0, 0.0)


def _largest(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None or b is None or a.shape != b.shape:
        return a if b is None else b
    return torch.maximum(a, b)


def _median(draws: list[torch.Tensor | None]) -> torch.Tensor | None:
    known = [draw for draw in draws if draw is not None]
    return torch.stack(known).median(0).values if known and len({draw.shape for draw in known}) == 1 else None


def off(
    mine: torch.Tensor, eager: torch.Tensor, true: torch.Tensor | None, eager_error: torch.Tensor | None
) -> list[str]:
    """Where `mine` breaks the rule, in words. Where eager is infinite or NaN mine must be so, or be right."""
    dtype = eager.dtype.to_real() if eager.dtype.is_complex else eager.dtype
    info = torch.finfo(dtype)
    got, theirs, precise = as_numbers(mine), as_numbers(eager), as_numbers(true)
    assert got is not None and theirs is not None
    times = 2
    if precise is None or precise.shape != theirs.shape:
        precise, times = theirs, 3
    best = torch.where(torch.isfinite(precise), precise, theirs)
    error = (theirs - best).abs().nan_to_num(0.0, 0.0, 0.0)
    if eager_error is not None and eager_error.shape == error.shape:
        error = torch.maximum(error, eager_error)
    exponent = torch.frexp(best.abs().clamp_min(info.tiny).nan_to_num(1.0, 1.0, 1.0)).exponent
    ulp = torch.ldexp(torch.full_like(best, info.eps), exponent - 1)
    allowed = times * error + ULPS * ulp
    wrong = ~((got - best).abs() <= allowed)
    for answer in (theirs, precise.to(dtype).to(torch.float64)):
        wrong &= ~((got == answer) | (torch.isnan(got) & torch.isnan(answer)))
    if not wrong.any():
        return []
    far = ((got - best).abs() / allowed).nan_to_num(torch.inf).masked_fill(~wrong, -1)
    pick = [values.flatten()[far.argmax()].item() for values in (got, theirs, best, far, error)]
    return [
        f"{int(wrong.sum())} of {wrong.numel()} wrong, worst: {pick[0]!r}, eager {pick[1]!r}, true {pick[2]!r}: "
        f"{pick[3]:.3g} times what is allowed, eager's error being {pick[4]:.2g}"
    ]
