"""ATen's operators of eigenvalues of symmetric matrices and of singular values, and what is computed by those.

Vectors are determined but for their signs, which are not LAPACK's.
"""

from typing import Any

import torch

from smelt.chips.linear_algebra.jacobi import eigenvalues, singular_values
from smelt.chips.linear_algebra.matrices import diagonal, given_back, identity, lower, taken
from smelt.chips.linear_algebra.reflections import factored, multiplied

Tensor = torch.Tensor
aten = torch.ops.aten


def _nothing(like: Tensor) -> Tensor:
    return torch.empty([0], dtype=like.dtype, device=like.device)


def eigh(a: Tensor, UPLO: str = "L", compute_v: bool = True) -> Any:
    if not a.numel() or UPLO.upper() not in ("L", "U"):
        return NotImplemented
    half = lower(taken(a if UPLO.upper() == "L" else a.mT), 0, False)
    values, vectors = eigenvalues(half + lower(half, -1, False).transpose(1, 2))
    found = values.to(a.dtype).view(a.shape[:-1])
    return found, given_back(vectors, a) if compute_v else _nothing(a)


def _decomposed(a: Tensor, full: bool, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, lengths and V of a batch with at least as many rows as columns."""
    columns, lengths, right = singular_values(a)
    if not vectors:
        return columns, lengths, right
    # Columns at right angles are their own R. A reflection gives also those of no length a direction.
    made, scales = factored(columns)
    count, rows, cols = a.shape
    left = multiplied(made, scales, identity([count, rows, rows if full else cols], made))
    signs = torch.where(diagonal(made[:, :cols].contiguous()) < 0, -1.0, 1.0).unsqueeze(1)
    if full and rows > cols:
        signs = torch.nn.functional.pad(signs, (0, rows - cols), value=1.0)
    return left * signs, lengths, right


def svd(a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    if driver is not None:
        return NotImplemented
    if not a.numel():
        return _svd_of_nothing(a, full_matrices, compute_uv)
    is_wide = a.shape[-2] < a.shape[-1]
    left, lengths, right = _decomposed(taken(a.mT if is_wide else a), full_matrices, compute_uv)
    values = lengths.to(a.dtype).view(*a.shape[:-2], lengths.shape[2])
    if not compute_uv:
        return _nothing(a), values, _nothing(a)
    if is_wide:
        left, right = right, left
    return given_back(left, a), values, given_back(right.transpose(1, 2).contiguous(), a)


def _svd_of_nothing(a: Tensor, full: bool, vectors: bool) -> Any:
    """No singular values, and whatever vectors where all are asked for."""
    batch, (rows, cols) = a.shape[:-2], a.shape[-2:]
    values = torch.empty([*batch, min(rows, cols)], dtype=a.dtype, device=a.device)
    if not vectors:
        return _nothing(a), values, _nothing(a)
    least = min(rows, cols)
    sides = [[batch.numel(), rows, rows if full else least], [batch.numel(), cols if full else least, cols]]
    left, right = (given_back(identity(side, taken(a)), a) for side in sides)
    return left, values, right


def _tolerances(a: Tensor, atol: Any, rtol: Any) -> tuple[Tensor, Tensor]:
    """As PyTorch chooses those that are not given."""
    zero = torch.zeros([], dtype=torch.float64, device=a.device)
    usual = torch.finfo(a.dtype).eps * max(a.shape[-2:])
    if rtol is None:
        rtol = torch.where(atol > 0, 0.0, usual) if atol is not None else zero + usual
    return (zero if atol is None else atol), rtol


def pinv(a: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """The same steps as PyTorch's, in the widest float."""
    if not a.numel():
        return NotImplemented
    atol, rtol = _tolerances(a, atol, rtol)
    if hermitian:
        half = lower(taken(a), 0, False)
        values, right = eigenvalues(half + lower(half, -1, False).transpose(1, 2))
        left, turned = right, False
    else:
        turned = a.shape[-2] < a.shape[-1]
        left, values, right = _decomposed(taken(a.mT if turned else a), False, True)
    sizes = values.abs().view(*a.shape[:-2], values.shape[2])
    least = torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * sizes.amax(-1, keepdim=True))
    kept = (sizes > least).view(values.shape)
    reciprocals = torch.where(kept, 1.0 / torch.where(kept, values, 1.0), 0.0)
    found = torch.bmm(right * reciprocals, left.transpose(1, 2).contiguous())
    found = given_back(found.transpose(1, 2).contiguous() if turned else found, a)
    return found


def lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """By singular values, whatever the driver: where the solution is not unique, the shortest."""
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss") or not a.numel() or not b.numel():
        return NotImplemented
    is_vector = b.dim() == 1 or b.dim() == a.dim() - 1
    columns = b.unsqueeze(-1) if is_vector else b
    if columns.shape[:-1] != a.shape[:-1]:
        return NotImplemented
    rows, cols = a.shape[-2:]
    turned = rows < cols
    left, values, right = _decomposed(taken(a.mT if turned else a), False, True)
    left, right = (right, left) if turned else (left, right)
    least = (torch.finfo(a.dtype).eps * max(rows, cols) if rcond is None else rcond) * values.amax(2, keepdim=True)
    kept = values > least
    given = taken(columns)
    shares = torch.bmm(left.transpose(1, 2).contiguous(), given)
    shares = shares * torch.where(kept, 1.0 / torch.where(kept, values, 1.0), 0.0).transpose(1, 2)
    found = torch.bmm(right, shares)
    rank = kept.sum(2).view(a.shape[:-2])
    residuals = _residuals(taken(a), found, given, a, rank, driver)
    # Where LAPACK had the right-hand side, and as many rows.
    room = torch.empty([*a.shape[:-2], columns.shape[-1], max(rows, cols)], dtype=a.dtype, device=a.device)
    solution = room.mT.narrow(-2, 0, cols).copy_(given_back(found, a))
    has_values = driver in ("gelsd", "gelss")
    return (
        solution.squeeze(-1) if is_vector else solution,
        residuals,
        torch.empty([0], dtype=torch.int64, device=a.device) if driver == "gels" else rank,
        values.to(a.dtype).view(*a.shape[:-2], values.shape[2]) if has_values else _nothing(a),
    )


def _residuals(a: Tensor, found: Tensor, b: Tensor, like: Tensor, rank: Tensor, driver: str | None) -> Tensor:
    """Where there are more equations than numbers; drivers that know the rank want it to be full."""
    rows, cols = like.shape[-2:]
    if rows <= cols or (driver in ("gelsd", "gelss") and not bool((rank == cols).all())):
        return _nothing(like)
    off = (torch.bmm(a, found) - b).square().sum(1)
    return off.to(like.dtype).view(*like.shape[:-2], off.shape[1])


# Degrees of Taylor's series to which a matrix of such a norm has an exponential that is right in float64.
_DEGREE, _NORM = 18, 1.0


def matrix_exp(a: Tensor) -> Any:
    """By Taylor's series of a part of each matrix, squared as often as it was halved."""
    if not a.numel() or not a.is_floating_point():
        return NotImplemented
    x = taken(a)
    norm = x.abs().sum(1, keepdim=True).amax(2, keepdim=True)
    halvings = torch.where(norm > _NORM, torch.ceil(torch.log2(torch.where(norm > _NORM, norm, _NORM) / _NORM)), 0.0)
    most = float(halvings.amax())
    if not most < 1100:  # NaN or infinite
        return NotImplemented
    x = x * torch.exp2(-halvings)
    ones = identity(x.shape, x)
    found = ones
    for degree in range(_DEGREE, 0, -1):
        found = ones + torch.bmm(x, found) / degree
    for done in range(int(most)):
        found = torch.where(halvings > done, torch.bmm(found, found), found)
    return given_back(found, a)


TABLE: dict[torch._ops.OpOverload, Any] = {
    aten._linalg_eigh.default: eigh,
    aten._linalg_svd.default: svd,
    aten.linalg_pinv.atol_rtol_tensor: pinv,
    aten.linalg_lstsq.default: lstsq,
    aten.linalg_matrix_exp.default: matrix_exp,
}
