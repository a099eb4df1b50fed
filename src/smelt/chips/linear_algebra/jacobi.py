"""Eigenvalues of symmetric matrices and singular values, by Jacobi's rotations of many pairs at once.

    eigenvalues(a)        values in rising order, vectors in columns
    singular_values(a)    G = a·V with columns at right angles, longest first; their lengths; V

The 2·h columns stand in two rows of h. A round rotates each column of the upper row with the one below it, all pairs at
once, and then moves every column but the first by one place round the rows, as in a tournament: after 2·h - 1 rounds
each has met each. Rounds go on until nothing is left to rotate.
"""

import torch

from smelt.chips.fused import fused
from smelt.chips.linear_algebra.matrices import identity

Tensor = torch.Tensor

_SWEEPS = 40  # more than any matrix takes: ten or so do


class NoConvergence(NotImplementedError):
    """Numbers that are none, or too large: the host says what it thinks of them."""


def _angles(p: Tensor, q: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotation after which nothing is `mixed`."""
    safe = torch.where(mixed == 0, 1.0, mixed)
    cotangent = (q - p) / (2.0 * safe)
    tangent = 1.0 / (cotangent.abs() + (cotangent * cotangent + 1.0).sqrt())
    tangent = torch.where(mixed == 0, 0.0, torch.where(cotangent < 0, -tangent, tangent))
    cosine = 1.0 / (tangent * tangent + 1.0).sqrt()
    return cosine, tangent * cosine


def _rotated(a: Tensor, cosine: Tensor, sine: Tensor, place: int) -> Tensor:
    """Pairs of what is along two dimensions, `place` of the two rows and the one behind it."""
    upper, lower = a.select(place, 0), a.select(place, 1)
    return torch.stack([cosine * upper - sine * lower, sine * upper + cosine * lower], place)


def _moved(a: Tensor, place: int, at: Tensor) -> Tensor:
    """All but the first one place further round the two rows; `at` counts them."""
    upper, lower = a.select(place, 0), a.select(place, 1)
    along = torch.where(at == 1, lower.narrow(place, 0, 1), torch.roll(upper, 1, place))
    along = torch.where(at == 0, upper, along)
    back = torch.where(at == a.shape[place + 1] - 1, upper, torch.roll(lower, -1, place))
    return torch.stack([along, back], place)


# Symmetric matrices: [batch, 2, h, 2, h], and vectors [batch, n, 2, h].


@fused
def _rotate_both(a: Tensor, vectors: Tensor, moves: bool) -> tuple[Tensor, Tensor]:
    at = torch.arange(a.shape[2], device=a.device)
    down = at.unsqueeze(1)
    p, q, mixed = (
        torch.where(at == down, a.select(1, row).select(2, col), 0.0).sum(2) for row, col in ((0, 0), (1, 1), (0, 1))
    )
    cosine, sine = _angles(p, q, mixed)
    c, s = cosine.unsqueeze(1), sine.unsqueeze(1)
    vectors = _rotated(vectors, c, s, 2)
    a = _rotated(a, c.unsqueeze(1), s.unsqueeze(1), 3)
    a = _rotated(a, cosine.unsqueeze(2).unsqueeze(3), sine.unsqueeze(2).unsqueeze(3), 1)
    if moves:
        vectors = _moved(vectors, 2, at)
        a = _moved(_moved(a, 3, at), 1, down.unsqueeze(2))
    return a, vectors


@fused
def _mixed(a: Tensor) -> tuple[Tensor, Tensor]:
    """The largest number beside the diagonal, and of all."""
    cols = torch.arange(a.shape[2], device=a.device)
    sizes = a.abs()
    return torch.where(cols == cols.unsqueeze(1), 0.0, sizes).amax([0, 1, 2]), sizes.amax([0, 1, 2])


def eigenvalues(a: Tensor) -> tuple[Tensor, Tensor]:
    """Of symmetric matrices [batch, n, n]: values [batch, 1, n] and vectors [batch, n, n]."""
    count, size, _ = a.shape
    even = size + size % 2
    a = torch.nn.functional.pad(a, (0, even - size, 0, even - size))
    vectors = identity([count, even, even], a)
    for _ in range(_SWEEPS):
        beside, largest = (float(each) for each in _mixed(a.view(count, even, even)))
        if not beside <= largest < float("inf"):
            raise NoConvergence
        if beside <= largest * torch.finfo(a.dtype).eps:
            values, order = _in_order(a.view(count, even, even), vectors, size)
            return values[:, :, :size].contiguous(), _columns(vectors, order)[:, :size, :size].contiguous()
        halves = a.view(count, 2, even // 2, 2, even // 2), vectors.view(count, even, 2, even // 2)
        for _ in range(even - 1):
            halves = _rotate_both(*halves, even > 2)
        a, vectors = halves[0].view(count, even, even), halves[1].view(count, even, even)
    raise NoConvergence


@fused
def _in_order(a: Tensor, vectors: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The diagonal in rising order, and the places from which its numbers come. What was added to make the number of
    columns even comes last."""
    cols = torch.arange(a.shape[2], device=a.device)
    values = torch.where(cols == cols.unsqueeze(1), a, 0.0).sum(1, keepdim=True)
    own = torch.where(cols.unsqueeze(1) < size, vectors.abs(), 0.0).sum(1, keepdim=True)
    return _sorted(torch.where(own > 0, values, float("inf")), cols)


def _sorted(keys: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [batch, 1, n] in rising order, and where each was: its place is the number of those before it."""
    others = keys.transpose(1, 2)
    before = (others < keys) | ((others == keys) & (places.unsqueeze(1) < places))
    rank = torch.where(before, 1, 0).sum(1, keepdim=True).transpose(1, 2)
    here = rank == places
    return torch.where(here, others, 0.0).sum(1, keepdim=True), torch.where(here, places.unsqueeze(1), 0).sum(
        1, keepdim=True
    )


def _columns(a: Tensor, order: Tensor) -> Tensor:
    return torch.gather(a, 2, order.expand(a.shape[0], a.shape[1], order.shape[2]))


# Any matrices: columns [batch, m, 2, h].


@fused
def _rotate_columns(a: Tensor, vectors: Tensor, moves: bool) -> tuple[Tensor, Tensor]:
    upper, lower = a.select(2, 0), a.select(2, 1)
    lengths = [(one * other).sum(1) for one, other in ((upper, upper), (lower, lower), (upper, lower))]
    cosine, sine = (each.unsqueeze(1) for each in _angles(*lengths))
    a, vectors = _rotated(a, cosine, sine, 2), _rotated(vectors, cosine, sine, 2)
    if moves:
        at = torch.arange(a.shape[3], device=a.device)
        a, vectors = _moved(a, 2, at), _moved(vectors, 2, at)
    return a, vectors


def singular_values(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of matrices [batch, m, n], m not less than n: a·V [batch, m, n], lengths [batch, 1, n], V [batch, n, n]."""
    count, rows, size = a.shape
    even = size + size % 2
    scale = a.abs().amax([1, 2], keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)
    a = torch.nn.functional.pad(a / scale, (0, even - size))
    vectors = identity([count, even, even], a)
    for _ in range(_SWEEPS):
        products = torch.bmm(a.transpose(1, 2).contiguous(), a)
        beside = float(_off_right_angles(products, torch.finfo(a.dtype).eps))
        if beside != beside:
            raise NoConvergence
        if beside <= _RIGHT * torch.finfo(a.dtype).eps:
            order = _longest_first(products, vectors, size)
            columns = _columns(a, order)[:, :, :size].contiguous() * scale
            lengths = (columns / scale).square().sum(1, keepdim=True).sqrt() * scale
            return columns, lengths, _columns(vectors, order)[:, :size, :size].contiguous()
        halves = a.view(count, rows, 2, even // 2), vectors.view(count, even, 2, even // 2)
        for _ in range(even - 1):
            halves = _rotate_columns(*halves, even > 2)
        a, vectors = halves[0].view(count, rows, even), halves[1].view(count, even, even)
    raise NoConvergence


_RIGHT = 32.0  # units in the last place by which an angle may be off: products of columns are sums


@fused
def _off_right_angles(products: Tensor, eps: float) -> Tensor:
    """The largest cosine between columns. What is as short as the rounding of the longest has no direction."""
    cols = torch.arange(products.shape[2], device=products.device)
    squares = torch.where(cols == cols.unsqueeze(1), products, 0.0).sum(1, keepdim=True)
    least = squares.amax(2, keepdim=True) * (eps * eps)
    lengths = (torch.where(squares > least, squares, least).sqrt() + 1e-300)
    angles = products.abs() / lengths / lengths.transpose(1, 2)
    return torch.where(cols == cols.unsqueeze(1), 0.0, angles).amax([0, 1, 2])


@fused
def _longest_first(products: Tensor, vectors: Tensor, size: int) -> Tensor:
    cols = torch.arange(products.shape[2], device=products.device)
    squares = torch.where(cols == cols.unsqueeze(1), products, 0.0).sum(1, keepdim=True)
    own = torch.where(cols.unsqueeze(1) < size, vectors.abs(), 0.0).sum(1, keepdim=True)
    return _sorted(torch.where(own > 0, -squares, float("inf")), cols)[1]
