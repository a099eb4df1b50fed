"""Strings made of tensors: as Python makes them, whatever happens afterwards; a line that prints is one break."""

import contextlib
import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def printed(x: torch.Tensor) -> torch.Tensor:
    print(f"sum {x.sum()}, max {x.max():.3f}, all {x}, shape {x.shape}", "!", sep="")
    return x * 2


def returned(x: torch.Tensor) -> Any:
    return f"{x.sum()}", [str(x), repr(x * 2)], {"text": f"<{x.mean():>10.2e}>"}


def written_afterwards(x: torch.Tensor) -> Any:
    y = x * 2
    text = f"{y}"
    y += 1
    return text, y


def a_view_written_afterwards(x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0]
    text = f"{y}"
    row.zero_()
    return text, y


def input_written_afterwards(x: torch.Tensor) -> Any:
    x = x.clone()
    text = f"{x.sum()}"
    torch.add(x, 1, out=x)
    return text, x


def compared(x: torch.Tensor) -> Any:
    text = f"{x.sum():.0f}"
    return text == "6", text != "6", text in ("6", "7"), text in {"6": 1}, x + 1


def decided(x: torch.Tensor) -> Any:
    text = f"{x.sum():.0f}"
    if text:
        x = x + 1
    return x if text is None else x * 2


def worked_on(x: torch.Tensor) -> Any:
    text = f"{x.sum():.1f}"
    return text + "!", text.upper(), len(text), text[0], text * 2, list(text), f"{text:>12}", isinstance(text, str)


def as_key(x: torch.Tensor) -> Any:
    return {f"{x.sum()}": x + 1}


def in_an_exception(x: torch.Tensor) -> Any:
    try:
        raise ValueError(f"bad {x.sum()}")
    except ValueError as error:
        return str(error), x + 1


def wrong_spec(x: torch.Tensor) -> Any:
    try:
        return f"{x:.3f}"
    except TypeError as error:
        return str(error), x + 1


def whole_number(x: torch.Tensor) -> Any:
    return f"{x.long().sum()} {x.long().sum():>5d} {x.sum() > 3}"


def across_a_break(x: torch.Tensor) -> Any:
    text = f"{x.sum()}"
    print("here")
    return text + "?", x + 1


def swallowed(x: torch.Tensor) -> Any:
    text = f"{x}"
    del text
    return x + 1


def nested(x: torch.Tensor) -> Any:
    inner = f"{x.sum():.2f}"
    return f"[{inner}|{inner!s}|{inner!r}]"


PROGRAMS = [
    printed,
    returned,
    written_afterwards,
    a_view_written_afterwards,
    input_written_afterwards,
    compared,
    decided,
    worked_on,
    as_key,
    in_an_exception,
    wrong_spec,
    whole_number,
    across_a_break,
    swallowed,
    nested,
]


def outcome(function: Callable[..., Any], x: torch.Tensor) -> tuple[str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = function(x)
    return repr(result), out.getvalue()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_text_is_what_python_makes_of_it(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program, backend="eager")
    for x in (torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[1.0, 2.0], [3.0, 1.0]])):
        assert outcome(compiled, x.clone()) == outcome(program, x.clone())


def test_a_line_that_prints_is_one_break_and_another_text_compiles_nothing_new() -> None:
    smelt.reset()
    compiled = smelt.compile(printed, backend="eager")
    for _ in range(3):
        outcome(compiled, torch.randn(3))
    assert smelt.counters["graph_breaks"] == 1
    assert smelt.counters["graphs"] == 2 and smelt.counters["recompiles"] == 0


def test_text_that_is_only_returned_needs_no_break() -> None:
    compiled = smelt.compile(returned, backend="eager", fullgraph=True)
    x = torch.randn(2, 2)
    assert outcome(compiled, x) == outcome(returned, x)


def logs(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    logging.getLogger("smelt.test").warning("x is %s", x)
    return x * 2


def test_logging_a_tensor_is_one_break(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(2)
    explanation = smelt.explain(logs, backend="eager")(x)
    assert caplog.messages == ["x is tensor([2., 2.])"]
    assert explanation.graph_count == 2
    assert explanation.graph_break_count <= 2  # the logger is got, and told
    assert not any("torch" in reason.stack[-1] for reason in explanation.break_reasons)
