"""Operators that the program replaces with `torch.library`: graphs that call them run in eager PyTorch."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.meta.fake_tensor import FakeTensor
from smelt.meta.replaced_operators import replaced_operators

pytestmark = pytest.mark.filterwarnings("ignore:.*(previously registered kernel|Overriding a).*:UserWarning")

EAGER = "SM020: a graph falls back to eager.*the program replaced aten::"


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    smelt.reset()


def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def exponential(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * 2


@contextlib.contextmanager
def replaced(operator: str, kernel: Callable[..., Any], key: str = "CPU") -> Iterator[None]:
    library: Any = torch.library.Library("aten", "IMPL")
    library.impl(operator, kernel, key)
    try:
        yield
    finally:
        library._destroy()


def test_kernels_of_pytorch_in_python_replace_nothing() -> None:
    """Newer versions register some of their own kernels with `torch.library`, from torch/_native."""
    library: list[Any] = []
    where = Path(torch.__file__).parent / "_native" / "registry.py"
    names = {"libraries": library, "Library": torch.library.Library}
    exec(compile('libraries.append(Library("aten", "IMPL"))', str(where), "exec"), names)
    library[0].impl("digamma", cosine, "CPU")
    try:
        assert replaced_operators() == frozenset()
    finally:
        library[0]._destroy()


def cosine(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(x) + 1


def same(compiled: Callable[..., Any], function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    for _ in range(3):  # the third call takes the fast path of guards
        torch.testing.assert_close(compiled(*inputs), function(*inputs))


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_runs_graphs_eagerly_after_a_program_replaces_an_operator(calls: int) -> None:
    compiled, x = smelt.compile(sine), torch.linspace(-3, 3, 50)
    for _ in range(calls):
        compiled(x)
    kernels = smelt.counters["kernels"]
    with replaced("sin", cosine):
        with pytest.warns(smelt.SmeltWarning, match=EAGER + "sin"):
            compiled(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is said once
            same(compiled, lambda x: (torch.cos(x) + 1) * 2, x)
        assert smelt.counters["kernels"] == kernels
        assert smelt.counters["eager_graphs"] == 1
    same(compiled, sine, x)
    assert smelt.counters["kernels"] == max(kernels, 1)  # what was compiled before is used again
    assert smelt.counters["eager_graphs"] == 1


def test_registrations_of_pytorch_itself_are_none() -> None:
    torch.func.vmap(torch.sin)(torch.ones(2))  # the first call registers kernels for batches
    assert replaced_operators() == frozenset()


def test_keeps_the_same_set_after_an_unrelated_registration() -> None:
    """Guards compare identities before contents."""
    with replaced("sin", cosine):
        before = replaced_operators()
        library = torch.library.Library("smelt_tests", "DEF")
        library.define("unrelated(Tensor x) -> Tensor")
        library.impl("unrelated", cosine, "CPU")
        assert replaced_operators() is before == {"aten/sin/CPU"}
        library._destroy()


def test_libraries_that_are_freed_after_their_end() -> None:
    """They remove the registrations of others from PyTorch's set."""
    compiled, x = smelt.compile(sine), torch.linspace(-3, 3, 50)
    library: Any = None
    for _ in range(3):
        same(compiled, sine, x)
        before, library = library, torch.library.Library("aten", "IMPL")
        library.impl("sin", cosine, "CPU")
        del before  # it has ended already
        assert replaced_operators() == {"aten/sin/CPU"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", smelt.SmeltWarning)
            same(compiled, lambda x: (torch.cos(x) + 1) * 2, x)
        library._destroy()
        assert replaced_operators() == frozenset()


def test_explains_why_a_graph_runs_eagerly() -> None:
    with replaced("sin", cosine), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = smelt.explain(sine)(torch.ones(5))
    assert "falls back to eager: the program replaced aten::sin (CPU)" in str(explanation)
    assert explanation.graph_reports[0].to_dict()["why_eager"] == "the program replaced aten::sin (CPU)"
    assert "aten/sin/CPU must stay replaced" in explanation.text(guards=True)


def test_compiles_graphs_without_the_operator() -> None:
    compiled, x = smelt.compile(exponential), torch.linspace(-3, 3, 50)
    compiled(x)
    with replaced("sin", cosine), warnings.catch_warnings():
        warnings.simplefilter("error")
        same(compiled, exponential, x)
    assert smelt.counters["eager_graphs"] == 0


def test_says_it_once_for_all_sizes() -> None:
    compiled = smelt.compile(sine, dynamic=True)
    with replaced("sin", cosine), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", smelt.SmeltWarning)
        for size in (3, 5, 7, 9):
            same(compiled, lambda x: (torch.cos(x) + 1) * 2, torch.ones(size))
    assert len([each for each in said if "replaced" in str(each.message)]) == smelt.counters["eager_graphs"] == 1


def test_notices_one_registration_in_place_of_another() -> None:
    compiled, x = smelt.compile(lambda x: torch.sin(x) * torch.exp(x)), torch.linspace(-3, 3, 50)
    same(compiled, lambda x: torch.sin(x) * torch.exp(x), x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        with replaced("sin", cosine):
            same(compiled, lambda x: (torch.cos(x) + 1) * torch.exp(x), x)
        with replaced("exp", cosine):  # as many registrations as at the last call
            same(compiled, lambda x: torch.sin(x) * (torch.cos(x) + 1), x)
    same(compiled, lambda x: torch.sin(x) * torch.exp(x), x)


def test_other_registrations_do_not_recompile() -> None:
    compiled, x = smelt.compile(sine), torch.ones(4)
    same(compiled, sine, x)
    library: Any = torch.library.Library("replaced_operators_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    same(compiled, sine, x)
    library._destroy()
    same(compiled, sine, x)
    assert smelt.counters["graphs"] == 1
    assert smelt.counters["recompiles"] == 0


@pytest.mark.parametrize(
    ("operator", "key", "function"),
    [
        ("mul.Tensor", "CPU", lambda x: x * x),
        ("mul_.Tensor", "CPU", lambda x: x.clone().mul_(x)),
        ("cat", "CPU", lambda x: torch.stack([x, x])),  # computed by `cat`
        ("sum.dim_IntList", "CPU", lambda x: x.sum()),  # computed by another overload
        ("tanh", "CPU", lambda x: torch.nn.functional.gelu(x, approximate="tanh") + torch.tanh(x)),
        ("linear", "CPU", lambda x: torch.nn.functional.linear(x, x)),
        ("sin", "AutogradCPU", lambda x: torch.sin(x)),
        ("linear", "CompositeImplicitAutograd", lambda x: torch.nn.functional.linear(x, x)),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_finds_the_operators_that_eager_calls(
    operator: str, key: str, function: Callable[[torch.Tensor], torch.Tensor], first: bool
) -> None:
    called: list[str] = []
    x = torch.linspace(-1, 1, 16).reshape(4, 4)
    with torch.no_grad():
        shape = function(x).shape

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        if type(args[0]) is not FakeTensor:  # the shapes of its results are asked with fake tensors
            called.append(operator)
        result = torch.full(shape if operator != "cat" else (8, 4), 7.0)
        return args[0].fill_(7.0) if operator.startswith("mul_") else result

    compiled = smelt.compile(function)
    if not first:
        compiled(x)
    with replaced(operator, kernel, key), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        results = compiled(x), function(x)
        assert len(called) == 2
    torch.testing.assert_close(*results)
    torch.testing.assert_close(compiled(x), function(x))
    assert len(called) == 2


def test_gradients_call_a_replaced_operator() -> None:
    def kernel(grad: torch.Tensor, *others: Any) -> torch.Tensor:
        return torch.full_like(grad, 3.0)

    compiled = smelt.compile(lambda x: torch.tanh(x).sum())
    for is_replaced in (False, True, False):
        with contextlib.ExitStack() as stack:
            if is_replaced:
                stack.enter_context(replaced("tanh_backward", kernel))
                stack.enter_context(pytest.warns(smelt.SmeltWarning, match=EAGER + "tanh_backward"))
            x = torch.ones(3, requires_grad=True)
            compiled(x).backward()
            expected = torch.full((3,), 3.0) if is_replaced else 1 - torch.tanh(torch.ones(3)) ** 2
            torch.testing.assert_close(x.grad, expected)


def test_refuses_to_export_and_to_fall_back_where_that_is_not_allowed() -> None:
    x = torch.ones(3)
    with replaced("sin", cosine):
        with pytest.raises(smelt.SmeltError, match="the program replaced aten::sin"):
            smelt.compile(sine, options={"fallback": False})(x)
        with pytest.raises(smelt.SmeltError, match="the program replaced aten::sin"):
            smelt.export(sine, (x,))


def test_lazy_blocks_call_a_replaced_operator() -> None:
    called: list[int] = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        called.append(x.numel())
        return torch.cos(x)

    def steps(count: int) -> None:
        x = torch.linspace(-1, 1, 1000)
        for _ in range(count):
            with smelt.lazy():
                y = torch.sin(x) * 2
            torch.testing.assert_close(y, (torch.cos(x) if called else torch.linspace(-1, 1, 1000).sin()) * 2)

    steps(4)
    with replaced("sin", kernel):
        called.append(0)
        steps(4)
    assert called == [0, *[1000] * 4]
