"""Matrices on a chip: factorizations, what stands on them, and their errors, without the host."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

Function = Callable[..., Any]

LINALG_ERROR: Any = vars(torch.linalg)["LinAlgError"]  # which PyTorch's types do not know
SIZES = (5, 40)  # within a panel, and cut in two


@pytest.fixture(autouse=True)
def without_the_host() -> Iterator[None]:
    before = smelt.config.chip_fallback
    smelt.config.chip_fallback = False
    yield
    smelt.config.chip_fallback = before


def close(mine: Any, true: Any) -> None:
    for one, other in zip(mine, true, strict=True):
        torch.testing.assert_close(one.cpu().double(), other.double(), rtol=1e-5, atol=1e-5)


def both(function: Function, *given: torch.Tensor) -> None:
    """Held to the host's in float64."""
    found = function(*[each.to("sim") for each in given])
    true = function(*[each.double() for each in given])
    close(*[each if isinstance(each, tuple) else (each,) for each in (found, true)])


def matrices(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def well_conditioned(size: int) -> torch.Tensor:
    scale: float = size**0.5
    return matrices(2, size, size) / scale + 2 * torch.eye(size)


def positive(size: int) -> torch.Tensor:
    a = matrices(2, size, size)
    made: torch.Tensor = a @ a.mT / size + torch.eye(size)
    return made


@pytest.mark.parametrize("size", SIZES)
def test_cholesky_and_systems_by_it(size: int) -> None:
    a, b = positive(size), matrices(2, size, 3)
    both(torch.linalg.cholesky, a)
    both(lambda a: torch.linalg.cholesky(a, upper=True), a)
    both(lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)), a, b)
    both(lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)), a)


@pytest.mark.parametrize("size", SIZES)
def test_lu_has_lapacks_pivots(size: int) -> None:
    for rows, cols in ((size, size), (size + 3, size), (size, size + 3)):
        a = matrices(2, rows, cols)
        both(torch.linalg.lu_factor, a)
        both(torch.linalg.lu, a)


@pytest.mark.parametrize("size", SIZES)
def test_systems_inverses_and_determinants(size: int) -> None:
    a, b = well_conditioned(size), matrices(2, size, 3)
    both(torch.linalg.solve, a, b)
    both(lambda a, b: torch.linalg.solve(a, b.mT, left=False), a, b)
    both(torch.linalg.inv, a)
    both(torch.linalg.slogdet, a)
    both(torch.linalg.det, a[:, :5, :5])
    for upper in (False, True):
        for left in (False, True):
            triangle = a.triu() if upper else a.tril()
            right = b if left else b.mT
            both(lambda a, b: torch.linalg.solve_triangular(a, b, upper=upper, left=left), triangle, right)  # noqa: B023


def test_gradients_are_pytorchs_formulas_on_the_chip() -> None:
    a, b = well_conditioned(5), matrices(2, 5, 3)

    def gradients(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        scalar = torch.linalg.solve(a, b).sin().sum() + torch.linalg.slogdet(a).logabsdet.sum()
        scalar = scalar + torch.linalg.svdvals(a).sin().sum() + torch.linalg.qr(a).R.abs().sin().sum()
        return torch.autograd.grad(scalar, (a, b))

    both(gradients, a, b)


@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr_has_lapacks_signs(shape: tuple[int, int], mode: str) -> None:
    both(lambda a: tuple(each for each in torch.linalg.qr(a, mode=mode) if each.numel()), matrices(2, *shape))


@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9), (6, 1)])
def test_singular_values_and_what_stands_on_them(shape: tuple[int, int]) -> None:
    a = matrices(2, *shape)
    both(torch.linalg.svdvals, a)
    both(torch.linalg.pinv, a)
    both(torch.linalg.matrix_rank, a)
    both(lambda a: torch.linalg.lstsq(a, a[..., :1]).solution, a)

    def whole(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        u, s, vh = torch.linalg.svd(a)
        count = s.shape[-1]
        return u @ u.mT, s, vh @ vh.mT, u[..., :count] * s.unsqueeze(-2) @ vh[..., :count, :]

    both(whole, a)


def test_vectors_of_a_matrix_without_full_rank_are_at_right_angles() -> None:
    a = matrices(6, 2) @ matrices(2, 5)
    u, s, vh = torch.linalg.svd(a.to("sim"))
    close((u @ u.mT, vh @ vh.mT), (torch.eye(6), torch.eye(5)))
    close((s,), (torch.linalg.svdvals(a.double()),))


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_eigenvalues_of_symmetric_matrices(size: int) -> None:
    a = matrices(3, size, size)
    both(torch.linalg.eigvalsh, a)
    both(lambda a: torch.linalg.eigvalsh(a, UPLO="U"), a)

    def whole(a: torch.Tensor) -> torch.Tensor:
        values, vectors = torch.linalg.eigh(a)
        made: torch.Tensor = vectors * values.unsqueeze(-2) @ vectors.mT
        return made

    both(whole, a)


def test_exponential_of_small_and_large_matrices() -> None:
    both(torch.matrix_exp, torch.stack([0.01 * matrices(4, 4), matrices(4, 4), 5 * matrices(4, 4).tanh()]))


def test_errors_are_pytorchs() -> None:
    singular = torch.ones(3, 3)
    not_positive = torch.tensor([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
    for function, a in (
        (torch.linalg.inv, singular),
        (torch.linalg.cholesky, not_positive),
        (lambda a: torch.linalg.solve(a, a), singular),
        (lambda a: torch.linalg.inv(a.expand(2, 3, 3)), singular),
    ):
        with pytest.raises(LINALG_ERROR) as raised:
            function(a)
        with pytest.raises(LINALG_ERROR, match=re.escape(str(raised.value))):
            function(a.to("sim"))


def test_where_a_factorization_fails_is_told_without_an_error() -> None:
    batch = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 1.0])), torch.diag(-torch.ones(3))])
    assert torch.linalg.cholesky_ex(batch.to("sim")).info.tolist() == [0, 2, 1]
    assert torch.linalg.inv_ex(torch.diag(torch.tensor([1.0, 0.0, 1.0])).to("sim")).info.item() == 2


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0)])
def test_no_matrices_and_matrices_of_nothing(shape: tuple[int, ...]) -> None:
    a = torch.empty(shape)
    for function in (torch.linalg.cholesky, torch.linalg.inv, torch.linalg.det, torch.linalg.qr, torch.linalg.svd):
        mine, true = function(a.to("sim")), function(a)
        pairs = zip(*[each if isinstance(each, tuple) else (each,) for each in (mine, true)], strict=True)
        assert all(torch.equal(one.cpu(), other) for one, other in pairs)
