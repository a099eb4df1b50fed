"""Parts of the standard library that are followed rather than left to Python, and compared with it."""

import contextlib
import functools
import inspect
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from tests.capture.programs import Captured, compare

X = torch.arange(6.0).reshape(2, 3)
EVENTS: list[str] = []


class Resource:
    def __enter__(self):
        EVENTS.append("entered")
        return self

    def __exit__(self, *error):
        EVENTS.append(f"left {error[0]}")
        return False

    def close(self):
        EVENTS.append("closed")


def of_closing(x):
    EVENTS.clear()
    with contextlib.closing(Resource()) as resource:
        y = x + 1
    return y * 2, type(resource).__name__, EVENTS.copy()


def of_suppress(x):
    with contextlib.suppress(KeyError, ValueError):
        x = x * 2
        raise KeyError("a")
    return x + 1


def of_nullcontext(x):
    with contextlib.nullcontext(3) as n:
        return x * n


def helper(a, b=2, *more, c=3, **rest):
    return a * b + c + len(more) + len(rest)


def of_parameters(x):
    found = []
    for name, parameter in inspect.signature(helper).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            found.append((name, parameter.default, parameter.kind == parameter.KEYWORD_ONLY))
    return x * len(found), found


def of_binding(x):
    signature = inspect.signature(helper)
    accepted = {name: value for name, value in {"b": 5, "zz": 1}.items() if name in signature.parameters}
    bound = signature.bind(x, **accepted)
    bound.apply_defaults()
    return helper(*bound.args, **bound.kwargs), list(bound.arguments)


def of_new_signature(x):
    def inner(a, b=2, *, c=3):
        return a

    parameters = inspect.signature(inner).parameters
    return x * len(parameters), [(name, each.default is each.empty) for name, each in parameters.items()]


def twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@twice
def wrapped(a, b=2, *, scale=1):
    """Says what it does."""
    return a * b * scale


def of_wrapped_signature(x):
    found = inspect.signature(wrapped).parameters
    return wrapped(x, scale=3), list(found), "scale" in found, inspect.isclass(wrapped), inspect.isclass(int)


def of_wrapping(x):
    def inner(a, b=2):
        return a * b

    @torch.no_grad()
    def ungraded(a):
        return a + 1

    doubled = twice(inner)
    names = (
        doubled.__name__,
        doubled.__wrapped__ is inner,
        twice(wrapped).__doc__,
        list(inspect.signature(doubled).parameters),
    )
    return doubled(x) + ungraded(x), names, inspect.isgeneratorfunction(doubled)


def of_groups(x):
    items = [x, 1, 2.5, "a", "b", x + 1]
    whole = [(kind.__name__, list(group)) for kind, group in itertools.groupby(items, key=type)]
    firsts = [(key, next(group)) for key, group in itertools.groupby([1, 1, 2, 2, 1])]
    kept = [group for _, group in itertools.groupby("aab")]
    return whole, firsts, [list(group) for group in kept], type(kept[0]).__name__


def of_tee(x):
    one, other, third = itertools.tee([x, x + 1, x + 2], 3)
    next(other)
    return list(zip(one, other, strict=False)), list(third), list(itertools.accumulate([x, x + 1]))


@functools.singledispatch
def measure(value):
    return 0


@measure.register
def _(value: int):
    return value + 1


@measure.register(torch.Tensor)
def _(value):
    return value * 2


def of_dispatch(x):
    return measure(x) + measure(3) + measure("a") + measure(True)


MODEL = nn.Sequential(nn.Linear(3, 3), nn.ReLU())


def of_identities(x):
    seen = {}
    for kind in (nn.ReLU, nn.Linear, nn.ReLU):
        seen[id(kind)] = kind
    for parameter in MODEL.parameters():
        if id(parameter) not in seen:
            seen[id(parameter)] = parameter.sum()
    return x * len(seen), id(MODEL) == id(MODEL[0])


WHOLE = [
    of_closing,
    of_suppress,
    of_nullcontext,
    of_parameters,
    of_binding,
    of_new_signature,
    of_wrapped_signature,
    of_wrapping,
    of_groups,
    of_tee,
    of_dispatch,
    of_identities,
]


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_is_captured_whole(program: Callable[..., Any]) -> None:
    runner = compare(program, X)
    assert not runner.breaks, runner.texts("breaks")
    assert str(smelt.compile(program, backend="aot_eager")(X)) == str(program(X))


def test_an_exit_stack_leaves_in_order() -> None:
    def program(x):
        with contextlib.ExitStack() as stack:
            stack.enter_context(Resource())
            stack.callback(EVENTS.append, "called back")
            x = x * 2
            EVENTS.append("body")
        return x + 1

    def raising(x):
        with contextlib.ExitStack() as stack:
            stack.enter_context(Resource())
            raise KeyError(int(x.shape[0]))

    for each in (program, raising):
        seen = []
        for run in (each, functools.partial(Captured(), each), smelt.compile(each, backend="aot_eager")):
            EVENTS.clear()
            outcomes = []
            for _ in range(2):
                with contextlib.suppress(KeyError):
                    outcomes.append(run(X).tolist())
            seen.append((outcomes, list(EVENTS)))
        assert seen[0] == seen[1] == seen[2]


def test_redirected_text_is_a_clean_break() -> None:
    def program(x):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print("hello")
            y = x * 2
        return y, text.getvalue()

    runner = compare(program, X)
    assert set(runner.break_codes) == {"B002"}
    assert not runner.recompiles


def test_what_is_dispatched_to_is_asked_again() -> None:
    @functools.singledispatch
    def choose(value):
        return 1

    def program(x, value):
        return x * choose(value)

    runner = Captured()
    assert runner(program, X, "a").tolist() == X.tolist()
    choose.register(str)(lambda value: 5)
    assert runner(program, X, "a").tolist() == (X * 5).tolist()
    assert runner(program, X, 1).tolist() == X.tolist()


def test_another_object_has_another_identity() -> None:
    def program(x, seen, thing):
        return x * (id(thing) in seen)

    runner = Captured()
    one, other = Resource(), Resource()
    seen = {id(one)}
    for thing in (one, other, one, other):
        assert runner(program, X, seen, thing).tolist() == (X * (thing is one)).tolist()


def test_nan_groups_with_itself_alone() -> None:
    nan = float("nan")
    compare(lambda x: (x + 1, [len(list(group)) for _, group in itertools.groupby([nan, nan, float("nan")])]), X)


def test_a_wrapper_that_is_kept_looks_like_what_it_wraps() -> None:
    def keep(x: torch.Tensor, kept: list[Any]) -> Any:
        def inner(a: Any, b: Any = 2) -> Any:
            """Multiplies."""
            return a * b

        kept += [twice(inner), twice(wrapped)]
        return x + 1

    def told(function: Any) -> Any:
        inner = function.__wrapped__
        return function.__name__, function.__doc__, function.__qualname__, inner.__name__, function(X), vars(inner)

    expected: list[Any] = []
    keep(X, expected)
    for _ in range(2):
        kept: list[Any] = []
        runner = Captured()
        runner(keep, X, kept)
        assert not runner.breaks
        for one, other in zip(kept, expected, strict=True):
            mine, theirs = told(one), told(other)
            assert mine[:4] == theirs[:4] and mine[5].keys() == theirs[5].keys()
            torch.testing.assert_close(mine[4], theirs[4])


def test_a_break_inside_a_generator_leaves_others_in_the_graph() -> None:
    """The graph ends where the one that was suspended is made, not at the first that there was."""

    def broken(x: torch.Tensor) -> Any:
        for number in (1, 2):
            smelt.graph_break()
            yield x * number

    def f(x: torch.Tensor) -> Any:
        for each in itertools.chain([x], [x + 1]):
            x = x + each
        for each in broken(x):
            x = x + each
        return x

    runner = compare(f, X)
    assert all("chain" not in text for text in runner.texts("breaks"))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrap", [nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm])
def test_norms_of_weights_are_part_of_the_graph(wrap: Any, training: bool) -> None:
    def trained(compiled: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(wrap(nn.Linear(6, 8)), nn.ReLU(), wrap(nn.Linear(8, 3))).train(training)
        call = smelt.compile(model, backend="eager", fullgraph=True) if compiled else model
        for _ in range(3):
            call(torch.randn(5, 6)).square().mean().backward()
        return {**model.state_dict(), **{name: each.grad for name, each in model.named_parameters()}}

    plain, mine = trained(False), trained(True)
    for name in plain:
        torch.testing.assert_close(mine[name], plain[name], rtol=0, atol=0)
