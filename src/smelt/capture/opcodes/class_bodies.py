"""Instructions of class bodies: their names live in a dict, and what is not there is a cell's, a global or a builtin.

class Point:              LOAD_BUILD_CLASS · the body as a function · CALL
    k = 3                 STORE_NAME k
"""

from smelt.capture.interpreter.dict_keys import hashable
from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.bytecode import Instruction
from smelt.capture.model.values import Cell, Constant, Mapping, Value
from smelt.capture.opcodes.opcode_table import handles


def _names(frame: Frame, instruction: Instruction) -> Mapping:
    if frame.names is None:
        raise Unsupported("B012", instruction.name)
    return frame.names


@handles("LOAD_BUILD_CLASS")
def _load_build_class(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    function = interp.externals.global_name(frame.globals, "__build_class__")
    if function is None:
        raise Unsupported("B012", instruction.name)
    frame.stack.append(function)


@handles("STORE_NAME")
def _store_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    names = _names(frame, instruction)
    interp.before_setitem(names, instruction.value)
    names.items[instruction.value] = frame.stack.pop()


@handles("DELETE_NAME")
def _delete_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    names = _names(frame, instruction)
    if instruction.value not in names.items:
        raise _undefined(instruction.value)
    interp.before_mutation(names)
    del names.items[instruction.value]


@handles("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # the second from 3.12 on: of a dict on the stack
def _load_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = _in_names(interp, frame, instruction, instruction.value)
    frame.stack.append(global_value(interp, frame, instruction.value) if value is None else value)


@handles("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")  # 3.11, 3.12
def _load_name_or_cell(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = _in_names(interp, frame, instruction, frame.info.slot_names[instruction.arg])
    frame.stack.append(_in_cell(interp, frame, instruction.arg) if value is None else value)


@handles("LOAD_LOCALS")
def _load_locals(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.12
    frame.stack.append(_names(frame, instruction))


@handles("SETUP_ANNOTATIONS")
def _setup_annotations(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    names = _names(frame, instruction)
    key = hashable(interp, Constant("__annotations__"))
    if key not in names.items:
        interp.before_setitem(names, key)
        names.items[key] = Mapping({})


def _in_names(interp: Interpreter, frame: Frame, instruction: Instruction, name: str) -> Value | None:
    """What a name is in the class body's dict, or in one that is taken from the stack; None if it is not there."""
    if not instruction.name.startswith("LOAD_FROM_DICT"):
        return _names(frame, instruction).items.get(name)
    names = frame.stack.pop()
    if not isinstance(names, Mapping):
        raise Unsupported("B012", "LOAD_FROM_DICT")
    return interp.externals.force(names.items[name]) if interp.externals.present(names, name) else None


def _in_cell(interp: Interpreter, frame: Frame, slot: int) -> Value:
    cell = frame.slots[slot]
    contents = interp.externals.cell_contents(cell) if isinstance(cell, Cell) else None
    if contents is None:
        raise Unsupported("B018", frame.info.slot_names[slot])
    return contents


def global_value(interp: Interpreter, frame: Frame, name: str) -> Value:
    """A name of the module, or a builtin."""
    value = interp.externals.global_name(frame.globals, name)
    if value is None:
        raise _undefined(name)
    return value


def _undefined(name: str) -> Raised:
    missing = Raised(NameError(f"name '{name}' is not defined"), name, code="B018")
    missing.details = {"name": Constant(name)}
    return missing
