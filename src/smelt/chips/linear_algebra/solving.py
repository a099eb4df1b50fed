"""ATen's operators of Cholesky and LU factors, and what is solved with them.

    _linalg_solve_ex(a, b)  →  lu(a), rows of b permuted, two triangular systems
    _linalg_det(a)          →  lu(a), the product of its diagonal and of the signs of its swaps
"""

from typing import Any

import torch

from smelt.chips.linear_algebra.factors import (
    cholesky,
    inverse,
    lu,
    permutation,
    permuted,
    solve_lower,
    solve_upper,
)
from smelt.chips.linear_algebra.matrices import broadcast, diagonal, given_back, identity, lower, taken, upper

Tensor = torch.Tensor
aten = torch.ops.aten


def _turned(a: Tensor) -> Tensor:
    return a.transpose(-2, -1).contiguous()


def _info(failed: Tensor, like: Tensor) -> Tensor:
    return failed.to(torch.int32).view(like.shape[:-2])


def _checked(info: Tensor, name: str, like: Tensor) -> None:
    torch._linalg_check_errors(info, name, is_matrix=like.dim() == 2)


# Cholesky.


def cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    made, failed = cholesky(taken(a.mT if upper else a))
    info = _info(failed, a)
    if check_errors:
        _checked(info, "torch.linalg.cholesky_ex", a)
    factor = lower(made, 0, False)
    return given_back(_turned(factor) if upper else factor, a), info


def cholesky_plain(a: Tensor, upper: bool = False) -> Tensor:
    factor, info = cholesky_ex(a, upper=upper)
    _checked(info, "cholesky", a)
    return factor


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    b, factor = broadcast(b, factor)
    triangle = taken(factor.mT if upper else factor)
    found = solve_upper(_turned(triangle), solve_lower(triangle, taken(b)))
    return given_back(found, b)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    triangle = taken(factor.mT if upper else factor)
    ones = identity(triangle.shape, triangle)
    return given_back(solve_upper(_turned(triangle), solve_lower(triangle, ones)), factor)


# Triangular systems.


def solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    a, b = broadcast(a, b)
    if not left:  # x·a = b is aᵀ·xᵀ = bᵀ
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    solve = solve_upper if upper else solve_lower
    return given_back(solve(taken(a), taken(b), unitriangular), b)


def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    b, a = broadcast(b, a)
    matrix, is_upper = (a.mT, not upper) if transpose else (a, upper)
    return solve_triangular(matrix, b, upper=is_upper, unitriangular=unitriangular), a.clone()


# LU.


def _pivots(pivots: Tensor, like: Tensor) -> Tensor:
    return pivots.to(torch.int32).view(*like.shape[:-2], pivots.shape[2])


def lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    if not pivot:
        return NotImplemented
    made, pivots, _, failed = lu(taken(a))
    info = _info(failed, a)
    if check_errors:
        _checked(info, "torch.linalg.lu_factor_ex", a)
    return given_back(made, a), _pivots(pivots, a), info


def _unpacked(made: Tensor) -> tuple[Tensor, Tensor]:
    """L and U of both in one matrix."""
    steps = min(made.shape[1:])
    left, right = made[:, :, :steps].contiguous(), made[:, :steps].contiguous()
    return lower(left, 0, True), upper(right)


def _matrix_of(order: Tensor, like: Tensor) -> Tensor:
    """The permutation with which a = p·l·u."""
    places = torch.arange(order.shape[2], device=order.device).unsqueeze(1)
    return (order == places).to(like.dtype)


def lu_with_matrix(a: Tensor, *, pivot: bool = True) -> Any:
    if not pivot:
        return NotImplemented
    made, _, order, _ = lu(taken(a))
    left, right = _unpacked(made)
    return given_back(_matrix_of(order, made), a), given_back(left, a), given_back(right, a)


def lu_unpack(data: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    nothing = torch.empty([0], dtype=data.dtype, device=data.device)
    order, left, right = nothing, nothing, nothing
    if unpack_data:
        left, right = (given_back(each, data) for each in _unpacked(taken(data)))
    if unpack_pivots:
        if pivots.dtype != torch.int32:
            return NotImplemented  # an error of PyTorch's
        order = given_back(_matrix_of(permutation(_steps(pivots), data.shape[-2]), data), data)
    return order, left, right


def _steps(pivots: Tensor) -> Tensor:
    count = pivots.shape[:-1].numel()
    return pivots.to(torch.int64).contiguous().view(count, 1, pivots.shape[-1])


def _solved(made: Tensor, order: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
    """x with a·x = b, or aᵀ·x = b."""
    if not transposed:
        return solve_upper(made, solve_lower(made, permuted(b, order), is_unit=True))
    turned = _turned(made)
    found = solve_upper(turned, solve_lower(turned, b), is_unit=True)
    return permuted(found, inverse(order))


def lu_solve(data: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return lu_solve(data, pivots, b.mT, adjoint=not adjoint).mT
    data, b = broadcast(data, b)
    steps = _steps(pivots.expand(*data.shape[:-2], pivots.shape[-1]))
    return given_back(_solved(taken(data), permutation(steps, b.shape[-2]), taken(b), adjoint), b)


def solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    is_vector = b.dim() == 1 or (b.dim() + 1 == a.dim() and b.shape == a.shape[:-1])
    columns = b.unsqueeze(-1) if is_vector else b
    if columns.dim() < 2 or a.shape[-1] != a.shape[-2]:
        return NotImplemented  # an error of PyTorch's
    made, pivots, order, failed = lu(taken(a))
    info = _info(failed, a)
    if check_errors:
        _checked(info, "torch.linalg.solve_ex", a)
    _, columns = broadcast(a, columns)
    is_right = not left and not is_vector  # x·a = b is aᵀ·xᵀ = bᵀ
    given = columns.mT if is_right else columns
    each = [_each(one, a, columns.shape[:-2]) for one in (made, order)]
    found = given_back(_solved(each[0], each[1], taken(given), is_right), given)
    found = found.mT if is_right else found
    return found.squeeze(-1) if is_vector else found, given_back(made, a), _pivots(pivots, a), info


def _each(batch: Tensor, like: Tensor, shape: torch.Size) -> Tensor:
    """A batch with the dimensions of what it is used for."""
    wide = batch.view(*like.shape[:-2], *batch.shape[1:]).expand(*shape, *batch.shape[1:])
    return wide.contiguous().view(shape.numel(), *batch.shape[1:])


def inv_ex(a: Tensor, *, check_errors: bool = False) -> Any:
    if a.dim() < 2 or a.shape[-1] != a.shape[-2]:
        return NotImplemented
    made, _, order, failed = lu(taken(a))
    info = _info(failed, a)
    if check_errors:
        _checked(info, "torch.linalg.inv_ex", a)
    return given_back(_solved(made, order, identity(made.shape, made)), a), info


def _factored(a: Tensor) -> tuple[Tensor, Tensor]:
    """For determinants, of the transpose where that saves PyTorch a copy: its formulas of gradients count on it."""
    made, pivots, _, _ = lu(taken(a.mT if a.is_contiguous() else a))
    return made, pivots


def _swaps(pivots: Tensor) -> Tensor:
    """1 or -1 by how many rows were swapped, [batch]."""
    places = torch.arange(1, pivots.shape[2] + 1, device=pivots.device)
    odd = (pivots != places).sum([1, 2]) % 2
    return 1 - 2 * odd


def det(a: Tensor) -> Any:
    if a.dim() < 2 or a.shape[-1] != a.shape[-2]:
        return NotImplemented
    made, pivots = _factored(a)
    found = _swaps(pivots).to(made.dtype) * diagonal(made).prod(1) if made.numel() else _one(made)
    return found.to(a.dtype).view(a.shape[:-2]), given_back(made, a), _pivots(pivots, a)


def slogdet(a: Tensor) -> Any:
    if a.dim() < 2 or a.shape[-1] != a.shape[-2]:
        return NotImplemented
    made, pivots = _factored(a)
    numbers = diagonal(made) if made.numel() else _one(made).unsqueeze(1)
    sign = _swaps(pivots).to(made.dtype) * numbers.sign().prod(1)
    size = numbers.abs().log().sum(1)
    results = [each.to(a.dtype).view(a.shape[:-2]) for each in (sign, size)]
    return *results, given_back(made, a), _pivots(pivots, a)


def _one(like: Tensor) -> Tensor:
    return torch.ones(like.shape[0], dtype=like.dtype, device=like.device)


TABLE: dict[torch._ops.OpOverload, Any] = {
    aten.linalg_cholesky_ex.default: cholesky_ex,
    aten.cholesky.default: cholesky_plain,
    aten.cholesky_solve.default: cholesky_solve,
    aten._cholesky_solve_helper.default: cholesky_solve,
    aten.cholesky_inverse.default: cholesky_inverse,
    aten.linalg_solve_triangular.default: solve_triangular,
    aten.triangular_solve.default: triangular_solve,
    aten.linalg_lu_factor_ex.default: lu_factor_ex,
    aten.linalg_lu.default: lu_with_matrix,
    aten.lu_unpack.default: lu_unpack,
    aten.linalg_lu_solve.default: lu_solve,
    aten._linalg_solve_ex.default: solve_ex,
    aten.linalg_inv_ex.default: inv_ex,
    aten._linalg_det.default: det,
    aten._linalg_slogdet.default: slogdet,
}
