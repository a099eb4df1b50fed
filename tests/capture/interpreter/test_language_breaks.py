"""Python that capture leaves to Python, each with its reason; warnings and logging, which are never lost or doubled."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.capture.interpreter.test_language import Point, Vector, X
from tests.capture.programs import Captured, compare


def of_identity(x):
    box = Point(1)
    return x + 1, id(box) == id(box)


def of_own_order(x):
    return x, [v.items for v in sorted([Vector(1, 2, 3), Vector(1), Vector(1, 2)])]


BREAKS: list[tuple[Callable[..., Any], str]] = [
    (of_identity, "B002"),  # addresses of objects that do not exist yet
    (of_own_order, "B017"),  # how often __lt__ is asked, and in which order, is the sort's own business
]


@pytest.mark.parametrize(("function", "code"), BREAKS, ids=lambda f: getattr(f, "__name__", f))
def test_breaks_with_its_reason(function: Callable[..., Any], code: str) -> None:
    assert compare(function, X).break_codes[0] == code


def test_warnings_are_given_once_and_in_order() -> None:
    def f(x):
        y = x + 1
        warnings.warn("first", stacklevel=1)
        z = y * 2
        warnings.warn("second", UserWarning, stacklevel=2)
        return z

    def told(call: Callable[..., Any]) -> list[tuple[str, str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(X)
        return [(str(each.message), each.filename, each.lineno) for each in caught]

    runner = Captured()
    for _ in range(2):
        mine = told(lambda x: runner(f, x))
        assert [text for text, _, _ in mine] == ["first", "second"]
        assert mine[0] == told(f)[0]


def test_logging_is_done_once_and_in_order(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.language")

    def f(x):
        y = x + 1
        logger.warning("shape %s", tuple(x.shape))
        z = y * 2
        logger.debug("not shown")
        logger.error("rows %d", z.shape[0])
        return z

    runner = Captured()
    for _ in range(2):
        caplog.clear()
        runner(f, X)
        assert [record.getMessage() for record in caplog.records] == ["shape (2, 3)", "rows 2"]
        assert caplog.records[0].funcName == "f"
