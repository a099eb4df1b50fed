"""Values at the edges of their range, all the way: what eager keeps finite stays finite, what it refuses is refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.fuse.running import without_onednn


@pytest.fixture(autouse=True)
def errors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the compiler fails eager answers in its stead, and is right."""
    monkeypatch.setattr(smelt.config, "suppress_errors", False)


def test_addcmul_scales_before_it_multiplies() -> None:
    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, a, b, value=1e-10)

    given = torch.zeros(3), torch.full((3,), 1e20), torch.full((3,), 1e25)
    assert torch.isfinite(function(*given)).all()
    torch.testing.assert_close(smelt.compile(function)(*given), function(*given))


def test_what_is_written_is_read_where_it_lies() -> None:
    """A copy of the old values had no gaps, and was read as if it had: memory behind it came into the result."""

    def average(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        mean.copy_(mean * 0.5 + x.detach().mean(0))
        return x * mean

    mine, theirs = torch.arange(10.0)[::2], torch.arange(10.0)[::2]
    x = torch.randn(3, 5, requires_grad=True)
    torch.testing.assert_close(smelt.compile(average)(x, mine), average(x, theirs))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_a_number_is_copied_into_a_tensor(backend: str) -> None:
    def overwrite(x: torch.Tensor, number: float) -> torch.Tensor:
        return (x + 0).copy_(number)

    for x in (torch.ones(3), torch.ones(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)):
        compiled = smelt.compile(overwrite, backend=backend, fullgraph=True)
        for number in (3, 1.75, True, -2):
            torch.testing.assert_close(compiled(x, number), overwrite(x, number))


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_integers_written_from_what_requires_a_gradient(backend: str) -> None:
    """PyTorch lets such a tensor require a gradient, which none of integers can be made with."""

    def write(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        made = torch.bitwise_and(counts, counts)
        made[0] = x.sum()
        return made

    x, counts = torch.ones(3, requires_grad=True), torch.arange(8).reshape(2, 4)
    compiled = smelt.compile(write, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(x, counts), write(x, counts))


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_what_is_written_through_an_expanded_view(backend: str) -> None:
    """Each element is there several times: what was written came back summed over them, or not at all."""

    def fill(x: torch.Tensor) -> torch.Tensor:
        x.expand(2, 3).fill_(2)
        return x + 1

    def put(x: torch.Tensor) -> torch.Tensor:
        wide = x.expand(2, 3)
        wide[0] = 5
        return x + 1

    def parts(x: torch.Tensor) -> torch.Tensor:
        first, _ = x.expand(2, 3).unbind(0)
        first.zero_()
        return x + 1

    for function in (fill, put, parts):
        mine, theirs = torch.arange(3.0), torch.arange(3.0)
        assert torch.equal(smelt.compile(function, backend=backend)(mine), function(theirs))
        assert torch.equal(mine, theirs)


def test_writing_many_times_to_one_place_is_refused_as_by_eager() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x.cos().expand(2, 3).mul_(2)

    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        smelt.compile(double)(torch.ones(3))


def test_a_check_of_no_index_reads_no_flag() -> None:
    """An operator that is called only to raise looked at a flag that no memory was planned for."""

    def function(places: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        torch.scatter(places[1:], 0, places[1:] % 3, 3)
        return x * 2

    assert torch.equal(smelt.compile(function)(torch.tensor([1]), torch.ones(2)), torch.full((2,), 2.0))


def test_what_reads_a_scatter_through_a_copy_waits_for_it() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        b = 2.0 - a * a
        b[0] = b[-1]
        return b.index_select(0, torch.arange(b.shape[0] - 1, -1, -1))

    mine = torch.arange(7.0).requires_grad_()
    theirs = torch.arange(7.0).requires_grad_()
    smelt.compile(function)(mine).square().sum().backward()
    function(theirs).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy])
def test_the_mean_loss_of_nothing(loss: Any) -> None:
    x = torch.ones(0, 3, requires_grad=True)
    result = smelt.compile(lambda x: loss(x, torch.ones(0, 3)))(x)
    result.backward()
    assert torch.isnan(result) and x.grad is not None and x.grad.shape == (0, 3)


def test_gelu_by_tanh_keeps_its_digits_below_zero() -> None:
    """As one plus tanh it loses them: eager is off by 3e-7."""

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")

    x, compiled = torch.linspace(-6, -1, 2001), smelt.compile(gelu, fullgraph=True)
    assert (compiled(x).double() - gelu(x.double())).abs().max() <= 5e-8
    assert compiled(torch.tensor([-9.0, -1e20])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["hardtanh", "hardswish", "elu", "selu", "relu6", "softshrink", "gelu", "silu"])
def test_gradients_of_activations_at_nan(name: str) -> None:
    """As eager's vector loops have them: its scalar ones, over what is left, answer otherwise for some, and oneDNN."""
    function = getattr(F, name)
    mine = torch.tensor([torch.nan, 0.25, -0.25, torch.inf] * 16).requires_grad_()
    theirs = mine.detach().clone().requires_grad_()
    result = smelt.compile(lambda x: function(x))(mine)
    result.sum().backward()
    with without_onednn():
        expected = function(theirs)
        expected.sum().backward()
    torch.testing.assert_close(result, expected, equal_nan=True)
    torch.testing.assert_close(mine.grad, theirs.grad, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_others_read_rounded_is_rounded_for_all(dtype: torch.dtype) -> None:
    """A mean of what is in memory, of which it is then subtracted, was one of what had not been rounded yet."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        powers = torch.exp(x)
        return powers, powers.float().sum()

    powers, total = smelt.compile(function)(torch.ones(64, dtype=dtype))
    assert total == 64 * powers[0].float()


@pytest.mark.parametrize("order", [1, 2, 3, torch.inf])
def test_the_norm_of_one_element_takes_no_square_of_it(order: float) -> None:
    given = torch.tensor([[1e30], [-2e-30], [torch.nan], [-torch.inf], [-0.0]])
    for keepdim in (False, True):
        result = smelt.compile(lambda x, k=keepdim: torch.linalg.vector_norm(x, order, dim=-1, keepdim=k))(given)
        assert torch.equal(result.view(5, -1)[[0, 1, 3, 4]], given.abs()[[0, 1, 3, 4]]) and result[2].isnan()


@pytest.mark.parametrize("size", [3, 64])
def test_what_does_not_fit_a_part_is_not_put_there(size: int) -> None:
    """An index outside was taken from the other end, and what is too small was repeated."""
    x = torch.ones(size, size)
    calls: list[Any] = [
        lambda x: torch.select_scatter(x * 2, x[0], 1, size + 1) + 1,
        lambda x: torch.slice_scatter(x * 2, x[:1], 0, 0, 2) + 1,
        lambda x: torch.diagonal_scatter(x * 2, x[:1, 0]) + 1,
    ]
    for call in calls:
        with pytest.raises((IndexError, RuntimeError)) as theirs:
            call(x)
        with pytest.raises(theirs.type) as ours:
            smelt.compile(call)(x)
        assert str(ours.value).split("\n")[0] == str(theirs.value)
