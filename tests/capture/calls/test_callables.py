"""The tables that a called object is looked up in."""

from collections import Counter

from smelt.capture.calls import dispatch, nn_module
from smelt.capture.model.policy import ANSWERED_FALSE, ANSWERED_TRUE, EVALUATED, IDENTITIES, IGNORED

TABLES = (
    dispatch.AMBIENT_CALLS,
    dispatch.BACKWARD_CALLS,
    dispatch.BLOCKS,
    dispatch.BUILTIN_CALLS,
    dispatch.CHECKPOINTS,
    dispatch.COPIES,
    dispatch.EXPRESSION_CALLS,
    dispatch.FUNCTION_CALLS,
    dispatch.NEW_CALLS,
    dispatch.POLYFILLS,
    dispatch.TRANSFORMS,
    dispatch.TRANSFORM_CALLS,
    dispatch.WRAPPER_CALLS,
    nn_module.MODULE_CALLS,
    nn_module.RECURRENT_CALLS,
)
NAMES = (ANSWERED_FALSE, ANSWERED_TRUE, EVALUATED, IDENTITIES, IGNORED, dispatch.CONVERSIONS, dispatch.QUESTIONS)


def test_every_callable_has_one_handler() -> None:
    counts = Counter(real for table in TABLES for real in table)
    assert [real for real, count in counts.items() if count > 1] == []
    assert all(map(dispatch._is_listed, dispatch.CALLABLES))


def test_every_name_has_one_handler() -> None:
    assert [name for name, count in Counter(name for names in NAMES for name in names).items() if count > 1] == []


def test_no_callable_is_known_by_its_name_too() -> None:
    assert [real for real in dispatch.CALLABLES if dispatch.known_name(real) in dispatch.NAMED] == []
