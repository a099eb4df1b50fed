"""Instructions of `except*`: a group is split into what a clause handles and the rest.

    except* ValueError as e:     CHECK_EG_MATCH   group → rest, match        PREP_RERAISE_STAR   what is left → None

A group of which something is left when all clauses are done is Python's to raise.
"""

from smelt.capture.interpreter.exceptions import GROUPS, make_group
from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.bytecode import Instruction
from smelt.capture.model.values import Constant, ExceptionValue, Sequence, Value, describe
from smelt.capture.opcodes.exceptions import classes_of
from smelt.capture.opcodes.opcode_table import handles

_NONE = Constant(None)


@handles("CHECK_EG_MATCH")
def _check_match(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    wanted = classes_of(interp, frame.stack.pop())
    error = frame.stack.pop()
    if any(interp.tree.has_base(kind, BaseExceptionGroup) for kind in wanted):
        raise Unsupported("B019", "TypeError: except* of groups")
    match, rest = _split(interp, error, wanted)
    frame.stack += [rest, match]
    if match is not _NONE:
        frame.handled = match


def _split(interp: Interpreter, error: Value, wanted: list[type]) -> tuple[Value, Value]:
    """What a clause handles, as a group, and what it leaves."""
    if isinstance(error, Constant) and error.value is None:
        return _NONE, _NONE
    if not isinstance(error, ExceptionValue):
        raise Unsupported("B012", f"except* with {describe(error)}")
    if any(interp.tree.has_base(error.kind, kind) for kind in wanted):
        return (error if error.kind in GROUPS else make_group(interp, Constant(""), [error])), _NONE
    if error.kind not in GROUPS:
        return _NONE, error
    pairs = [_parts(interp, each, wanted) for each in error.details["exceptions"].items]  # type: ignore[attr-defined]
    match = _derived(interp, error, [each for each, _ in pairs if each is not None])
    return match, _derived(interp, error, [each for _, each in pairs if each is not None])


def _parts(interp: Interpreter, error: ExceptionValue, wanted: list[type]) -> tuple[Value | None, Value | None]:
    if any(interp.tree.has_base(error.kind, kind) for kind in wanted):
        return error, None
    if error.kind not in GROUPS:
        return None, error
    match, rest = _split(interp, error, wanted)
    return None if match is _NONE else match, None if rest is _NONE else rest


def _derived(interp: Interpreter, group: ExceptionValue, errors: list[Value]) -> Value:
    """A group like another, with some of its exceptions."""
    if not errors:
        return _NONE
    if group.attributes:
        raise Unsupported("B012", "except* with a group that has notes or attributes")
    derived = make_group(interp, group.details["message"], errors)
    derived.places, derived.cause, derived.context = group.places, group.cause, group.context
    derived.suppresses = True  # Python sets the cause, none included, which says so
    return derived


@handles("PREP_RERAISE_STAR")
def _prepare_reraise(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    left = frame.stack[-1]
    handled = isinstance(left, Sequence) and all(each is _NONE for each in left.items)
    if not handled:
        raise Unsupported("B012", "except*, which leaves or raises exceptions")
    del frame.stack[-2:]
    frame.stack.append(_NONE)
