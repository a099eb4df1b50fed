"""Instructions of the `match` statement: what a pattern asks of its subject.

case {"a": x}:    MATCH_MAPPING · GET_LEN · MATCH_KEYS        case Point(x=0):   MATCH_CLASS
"""

from smelt.capture.calls.class_checks import is_instance
from smelt.capture.interpreter.attributes import attribute_or_none
from smelt.capture.interpreter.dict_keys import hashable
from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.interpreter.operators import length
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.bytecode import Instruction
from smelt.capture.model.static import is_a
from smelt.capture.model.values import Constant, Mapping, Object, Sequence, Value, describe, python_type
from smelt.capture.opcodes.opcode_table import handles, take

_SEQUENCE, _MAPPING = 1 << 5, 1 << 6  # type flags by which CPython tells what patterns may take apart
_MATCH_SELF = 1 << 22


@handles("MATCH_SEQUENCE", "MATCH_MAPPING")
def _match_kind(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    kind = python_type(frame.stack[-1])
    if kind is None:
        raise Unsupported("B012", f"match of {describe(frame.stack[-1])}")
    flag = _SEQUENCE if instruction.name == "MATCH_SEQUENCE" else _MAPPING
    frame.stack.append(Constant(bool(kind.__flags__ & flag)))


@handles("GET_LEN")
def _get_len(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(Constant(length(interp, frame.stack[-1])))


@handles("MATCH_KEYS")
def _match_keys(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    subject, keys = frame.stack[-2], frame.stack[-1]
    if not isinstance(subject, Mapping) or not isinstance(keys, Sequence):
        raise Unsupported("B012", f"match of {describe(subject)}")
    wanted = [hashable(interp, key) for key in interp.externals.items(keys)]
    if len(set(wanted)) != len(wanted):
        raise Unsupported("B019", "ValueError: mapping pattern checks duplicate key")
    if all(interp.externals.present(subject, key) for key in wanted):
        frame.stack.append(Sequence(tuple, [interp.externals.force(subject.items[key]) for key in wanted]))
    else:
        frame.stack.append(Constant(None))


@handles("MATCH_CLASS")
def _match_class(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    subject, wanted, names = take(frame, 3)
    if not isinstance(wanted, Object) or not is_a(wanted.value, type):
        raise Unsupported("B012", f"match of {describe(subject)} with {describe(wanted)}")
    if not is_instance(interp, subject, wanted):
        frame.stack.append(Constant(None))
        return
    values = _matched(interp, subject, wanted, instruction.arg, interp.plain(names))
    frame.stack.append(Constant(None) if values is None else Sequence(tuple, values))


def _matches_itself(kind: type) -> bool:
    """Whether the one place in a pattern of the class stands for the subject: its type flags say so."""
    return bool(kind.__flags__ & _MATCH_SELF)


def _matched(
    interp: Interpreter, subject: Value, wanted: Object, count: int, names: tuple[str, ...]
) -> list[Value] | None:
    """The attributes a class pattern names, by place and by keyword; None if one is missing."""
    kind = wanted.value
    places: tuple[str, ...] = ()
    itself: list[Value] = []
    if count:
        declared = attribute_or_none(interp, wanted, "__match_args__")
        if isinstance(declared, Sequence) and declared.kind is tuple and len(declared.items) >= count:
            places = interp.plain(declared)[:count]
        elif declared is None and count == 1 and interp.tree.of_class(kind, _matches_itself):
            itself = [subject]
        else:
            raise Unsupported("B019", f"TypeError: {kind.__name__}() accepts fewer positional sub-patterns")
        if not all(type(name) is str for name in places):
            raise Unsupported("B019", f"TypeError: __match_args__ elements of {kind.__name__} must be strings")
    values = [attribute_or_none(interp, subject, name) for name in (*places, *names)]
    if None in values:
        return None
    return [*itself, *[value for value in values if value is not None]]
