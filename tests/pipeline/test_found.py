"""What programs of all kinds found, from the function to the numbers: held to eager, in every backend."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.options import config
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import Recorder
from tests.targets import seeded

every_backend = pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])


@pytest.fixture(autouse=True)
def _nothing_falls_back() -> Iterator[None]:
    smelt.reset()
    config.suppress_errors = False
    yield
    config.suppress_errors = True


def _trained(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    """The result, and a gradient for each input."""
    leaves = [each.detach().clone().requires_grad_(each.dtype.is_floating_point) for each in inputs]
    out = function(*leaves)
    out.sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def _rotated(x: torch.Tensor) -> torch.Tensor:
    return (1j * x).exp().imag * (x - 2j).abs()


@every_backend
@pytest.mark.parametrize("budget", [None, 64, 0.5])
@pytest.mark.filterwarnings("ignore:memory_budget")
def test_views_of_numbers_are_left_as_they_are(backend: str, budget: float | None) -> None:
    """The gradient of `1j * x` has the conjugate of a number in it."""
    options = {} if budget is None else {"memory_budget": budget}
    compiled = smelt.compile(_rotated, backend=backend, fullgraph=True, options=options)
    x = torch.linspace(-2, 2, 7)
    torch.testing.assert_close(_trained(compiled, x), _trained(_rotated, x))


def _filtered(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfft(torch.fft.rfft(x).mul(2), n=x.shape[-1])


@every_backend
def test_sizes_that_a_derivative_holds_on_to_outlive_what_they_are_of(backend: str) -> None:
    """PyTorch's derivative of `rfft` reads the sizes of a gradient that was written on the way: they had been freed."""
    compiled = smelt.compile(_filtered, backend=backend)
    for size in (6, 12, 9, 16):
        x = torch.linspace(-2, 2, 3 * size).view(3, size)
        torch.testing.assert_close(_trained(compiled, x), _trained(_filtered, x))
    with Recorder() as recorder:
        made = recorder.placeholder("x", TensorSpec.of(torch.ones(3))) * 2
        seen = weakref.ref(made)
        del made
        assert seen() is not None
    del recorder
    assert seen() is None


def _write_row(x: torch.Tensor, i: int) -> torch.Tensor:
    y = x * 1
    y[i] = x[0] + i
    y[:, i] += 1
    return y


INDEXED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "row": lambda x, i: x[i] * 2,
    "column": lambda x, i: x[:, i].sin(),
    "from the end": lambda x, i: x[-i] * 2,
    "of both": lambda x, i: x[i, None, ..., i],
    "with an index tensor": lambda x, i: x[torch.tensor([0, 2]), :, i],
    "between index tensors": lambda x, i: x[torch.tensor([0, 2]), i, torch.tensor([1, 3])],
    "of a table": lambda x, i: x * torch.linspace(0, 1, 8)[i],
    "written": _write_row,
}


@every_backend
@pytest.mark.parametrize("name", INDEXED)
def test_one_graph_serves_every_index(name: str, backend: str) -> None:
    program = INDEXED[name]
    compiled = smelt.compile(program, backend=backend)
    for i in (2, 3, 5, 4, 2):
        x = torch.linspace(-2, 2, 216).view(6, 6, 6)
        torch.testing.assert_close(_trained(lambda x: compiled(x, i), x), _trained(lambda x: program(x, i), x))  # noqa: B023
    assert smelt.counters["graphs"] == 2  # one for the first number, one for any
    with pytest.raises(IndexError) as expected:
        program(x, 17)
    with pytest.raises(IndexError) as raised:
        compiled(x, 17)
    assert str(raised.value) == str(expected.value)


class Resizing(torch.nn.Module):
    """As feature pyramids do it: up to the size of another, by a factor, by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Upsample(scale_factor=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = F.avg_pool2d(x, 2)
        back = F.interpolate(small, size=x.shape[2:], mode="bilinear", align_corners=True) + x
        nearest = F.interpolate(small, x.shape[-2:]) * F.interpolate(small, size=x.shape[2:], mode="nearest-exact")
        return back + nearest + F.interpolate(self.up(x), size=(x.shape[2], x.shape[3]), mode="bicubic")


@every_backend
def test_images_of_any_size_are_resized_in_one_graph(backend: str) -> None:
    model = Resizing()
    compiled = smelt.compile(model, backend=backend)
    for height, width in ((8, 6), (10, 12), (14, 8), (9, 11)):
        x = torch.linspace(-2, 2, 4 * height * width).sin().view(2, 2, height, width)
        torch.testing.assert_close(_trained(compiled, x), _trained(model, x))
    assert (smelt.counters["graph_breaks"], smelt.counters["graphs"]) == (0, 2)
    with pytest.raises(ValueError, match="align_corners option"):
        smelt.compile(lambda x: F.interpolate(x, size=x.shape[2:], align_corners=True), dynamic=True)(x)
    with pytest.raises(ValueError, match="spatial dimensions"):
        smelt.compile(lambda x: F.interpolate(x, size=x.shape[1:]), dynamic=True)(x)


STEPS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "a warm-up": lambda x, step: x * min(step**-0.5, step * 4000**-1.5),
    "a root": lambda x, step: x / (1 + step) ** 0.55,
    "a power below": lambda x, step: x * step**-2,
    "a tensor of it": lambda x, step: x * torch.tensor(step * 0.1) + torch.tensor(step),
    "a tensor of several": lambda x, step: x + torch.tensor([step, 2 * step, 7]) + torch.tensor((step, 0.5, 1.0)),
    "a tensor of a type": lambda x, step: (x * torch.tensor([step], dtype=torch.float64)).float(),
}


@every_backend
@pytest.mark.parametrize("name", STEPS)
def test_one_graph_serves_every_step(name: str, backend: str) -> None:
    program = STEPS[name]
    compiled = smelt.compile(program, backend=backend, fullgraph=True)
    for step in (2, 3, 5, 11, 40):
        got = _trained(lambda x: compiled(x, step), torch.ones(3))  # noqa: B023
        torch.testing.assert_close(got, _trained(lambda x: program(x, step), torch.ones(3)))  # noqa: B023
    assert smelt.counters["graphs"] == 2


@every_backend
def test_what_is_drawn_lies_as_in_eager(backend: str) -> None:
    """Numbers are drawn in the order of memory, of which the meta kernel says otherwise than the operator does."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        made = F.logsigmoid(x)
        return [torch.randint_like(made, 5), torch.rand_like(made), made, torch.randn_like(x)]

    x = torch.randn(4, 3).t()
    torch.manual_seed(0)
    expected = function(x)
    torch.manual_seed(0)
    found = smelt.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, expected)
    assert [each.stride() for each in found] == [each.stride() for each in expected]


def _overwritten(a: torch.Tensor) -> torch.Tensor:
    a[0] = 0.001
    zeros = a * 0
    most = torch.asinh(zeros).amax([0], keepdim=True)
    torch.gather(most, -1, zeros % most.shape[-1])
    return most


@every_backend
def test_an_index_made_of_what_is_written_into_a_part_of_an_input(backend: str) -> None:
    a, b = torch.arange(5), torch.arange(5)
    torch.testing.assert_close(smelt.compile(_overwritten, backend=backend)(a), _overwritten(b))
    assert torch.equal(a, b)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max_pool1d": lambda x: F.max_pool1d(x, 2, 1),
    "max_pool1d, seen as a line": lambda x: F.max_pool1d(x, 2, 1).view(-1),
    "rrelu": lambda x: F.rrelu(x),
    "rrelu and dropout": lambda x: F.dropout(F.rrelu(x), 0.5),
    "rrelu in training": lambda x: F.rrelu(x, training=True),
}


@every_backend
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_results_of_transposed_inputs_lie_as_eagers(name: str, dynamic: bool | None, backend: str) -> None:
    """Fake tensors are a subclass of tensors, for which PyTorch pools by other code."""
    x = torch.randn(3, 6, 5).mT
    compiled = smelt.compile(LAYOUTS[name], backend=backend, dynamic=dynamic)
    for each in (x, x[:, :4], x.detach().requires_grad_()):
        if "line" in name and each.requires_grad:
            continue
        torch.manual_seed(3)
        mine = compiled(each)
        torch.manual_seed(3)
        eager = LAYOUTS[name](each)
        assert mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager)


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda a, b: torch.mm(a[None], b[:, None]),
    "mv": lambda a, b: torch.mv(a[None], b),
    "bmm": lambda a, b: torch.bmm(a[None, None], b[None, :, None]),
    "baddbmm": lambda a, b: torch.baddbmm(a[None, None, :1], a[None, None], b[None, :, None]),
    "einsum": lambda a, b: torch.einsum("...i,...i->...", a, b),
    "conv1d": lambda a, b: torch.conv1d(a[None, None], b[None, None, :1]),
}


@every_backend
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_two_dtypes_is_refused_though_nobody_uses_it(name: str, backend: str) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        PRODUCTS[name](a, b)
        return a + 1

    a, b = torch.randn(7), torch.ones(7, dtype=torch.bool)
    for each in (function, smelt.compile(function, backend=backend)):
        with pytest.raises(RuntimeError):
            each(a, b)


def test_an_image_of_one_element_is_enlarged_to_equal_ones() -> None:
    x = torch.randn(1, 5, 1)
    enlarged = smelt.compile(lambda x: F.interpolate(x, size=5, mode="linear"))(x)
    assert torch.equal(enlarged, x.expand(1, 5, 5))


@pytest.mark.parametrize("size", [5, 7, 9])
def test_what_is_no_number_reaches_the_elements_it_weighs_nothing_in(size: int) -> None:
    """The gradient of a result goes to both its neighbours, to one of them by nothing at times."""
    outcomes = []
    for wrap in (smelt.compile, lambda function: function):
        x = torch.randn(1, 3, 3, generator=seeded(2)).requires_grad_()
        enlarged = wrap(lambda x: F.interpolate(x, size=size, mode="linear"))(x)
        gradient = torch.ones_like(enlarged)
        gradient[0, 0, 0] = gradient[0, 1, size // 2] = gradient[0, 2, -1] = float("nan")
        enlarged.backward(gradient)
        outcomes.append(x.grad)
    torch.testing.assert_close(*outcomes, equal_nan=True)


@pytest.mark.parametrize("shape", [(130, 8), (8, 130), (5, 5)])
def test_the_gradient_of_a_trace_of_sizes_that_vary(shape: tuple[int, int]) -> None:
    outcomes = []
    for wrap in (lambda function: smelt.compile(function, dynamic=True), lambda function: function):
        a = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        wrap(lambda a: torch.trace(a - 3))(a).backward()
        outcomes.append(a.grad)
    assert torch.equal(*outcomes)


SPREADS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1).log(),
    "var_mean": lambda x: torch.stack(torch.var_mean(x, -1)),
    "var along the first": lambda x: x.T.contiguous().var(0).rsqrt(),
}


@pytest.mark.parametrize("name", SPREADS)
def test_equal_numbers_do_not_vary(name: str) -> None:
    compiled = smelt.compile(SPREADS[name], dynamic=False)
    for count in (3, 5, 33, 100):
        for number in (0.1, 1 / 3, 123.456, 1e-5):
            x = torch.full((2, count), number, dtype=torch.float64)
            assert torch.equal(compiled(x), SPREADS[name](x))


def test_a_batch_that_does_not_vary_is_normalized_by_nothing() -> None:
    def norm(x: torch.Tensor) -> Any:
        return torch.native_batch_norm(x, None, None, None, None, True, 0.1, 0.0)

    x = torch.full((8, 3), 0.5)
    for mine, eager in zip(smelt.compile(norm)(x), norm(x), strict=True):
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("corners", [True, None])
def test_what_is_infinite_at_the_end_of_an_enlarged_row(corners: bool | None) -> None:
    """At the last element PyTorch adds nothing of it to all of it, which of inf is nan; behind it, two parts."""
    inf = float("inf")

    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=5, mode="linear", align_corners=corners)

    for row in ([1.0, inf], [inf, 1.0]):
        x = torch.tensor([[row]])
        torch.testing.assert_close(smelt.compile(enlarged)(x), enlarged(x), equal_nan=True)
