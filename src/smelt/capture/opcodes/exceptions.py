"""Instructions that raise, catch and clean up: `raise`, `except`, `finally`, `with`.

What an instruction raises is a `Raised`; the interpreter carries it to the handler the exception table names, and these
do the rest there.

    except KeyError as e:     PUSH_EXC_INFO · LOAD_GLOBAL KeyError · CHECK_EXC_MATCH · … · POP_EXCEPT
"""

import types
from dataclasses import replace

import torch

from smelt.capture.interpreter.attributes import attribute
from smelt.capture.interpreter.exceptions import known_handled
from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.interpreter.special_methods import special
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.bytecode import Instruction
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    HANDLED_OUTSIDE,
    Constant,
    ExceptionValue,
    Handled,
    Method,
    Object,
    Sequence,
    TracebackValue,
    Value,
    describe,
    python_type,
)
from smelt.capture.opcodes.opcode_table import handles, push, take


@handles("RAISE_VARARGS")
def _raise_varargs(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg == 0:
        handled = known_handled(interp, interp.handled())
        if handled is None:
            raise Raised.of(RuntimeError("No active exception to reraise"))
        raise _reraised(handled)
    values = take(frame, instruction.arg)
    raised = Raised(_exception(interp, values[0], "exceptions must derive from BaseException"), describe(values[0]))
    if instruction.arg == 2:
        none = isinstance(values[1], Constant) and values[1].value is None
        refusal = "exception causes must derive from BaseException"
        raised.cause = values[1] if none else _exception(interp, values[1], refusal)
    raise raised


def _exception(interp: Interpreter, value: Value, refusal: str) -> Value:
    """What `raise value` raises: a class is called for an instance."""
    if isinstance(value, Object) and is_a(value.value, type) and issubclass(value.value, BaseException):
        value = interp.now(interp.call(value, []))
        if not issubclass(python_type(value) or object, BaseException):
            raise Unsupported("B019", f"TypeError: {describe(value)} is not an exception")  # in words of its own
    if not issubclass(python_type(value) or object, BaseException):
        raise Raised.of(TypeError(refusal))
    return value


def _reraised(error: Value) -> Unsupported:
    """Raise once more what has been raised before."""
    if isinstance(error, Handled) or not isinstance(error, ExceptionValue | Object):
        return Unsupported("B019", "raise")
    return Raised(error, describe(error), reraised=True)


@handles("RERAISE")
def _reraise(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    raise _reraised(frame.stack[-1])


@handles("PUSH_EXC_INFO")
def _push_exc_info(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    error = frame.stack.pop()
    frame.stack += [interp.handled_here(), error]
    frame.handled = error


@handles("POP_EXCEPT")
def _pop_except(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    before = frame.stack.pop()
    frame.handled = None if before is HANDLED_OUTSIDE or isinstance(before, Constant) else before


@handles("CHECK_EXC_MATCH")
def _check_exc_match(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    wanted = classes_of(interp, frame.stack.pop())
    kind = python_type(frame.stack[-1])
    if kind is None:
        raise Unsupported("B012", f"except with {describe(frame.stack[-1])}")
    frame.stack.append(Constant(any(interp.tree.has_base(kind, each) for each in wanted)))


def classes_of(interp: Interpreter, value: Value) -> list[type]:
    """The classes that a clause names."""
    named = interp.externals.items(value) if isinstance(value, Sequence) and value.kind is tuple else [value]
    classes = [each for each in named if isinstance(each, Object) and is_a(each.value, type)]
    if len(classes) < len(named) or not all(issubclass(each.value, BaseException) for each in classes):
        raise Raised.of(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    return [interp.externals.guard_identity(each) for each in classes]


@handles("STOPITERATION_ERROR")
def _stop_iteration_error(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.12
    error = frame.stack[-1]
    if python_type(error) is not StopIteration:
        return
    outer = ExceptionValue(RuntimeError, args=Sequence(tuple, [Constant("generator raised StopIteration")]))
    outer.cause = outer.context = error
    outer.suppresses = True
    frame.stack[-1] = outer


@handles("CLEANUP_THROW")
def _cleanup_throw(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.12
    """What was thrown into a generator inside `yield from`, after it was thrown into what that takes its items from."""
    error = frame.stack[-1]
    if isinstance(error, ExceptionValue) and error.kind is StopIteration:
        frame.stack[-3:] = [Constant(None), error.details["value"]]
        return
    raise _reraised(error)


# with


@handles("BEFORE_WITH")
def _before_with(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    manager = frame.stack.pop()
    if isinstance(manager, Constant) and type(manager.value) is torch.device:
        _enter_device(interp, frame, manager)
        return
    if not isinstance(manager, Object | Method) and not hasattr(manager, "members"):
        raise Unsupported("B013", describe(manager))
    leave, enter = special(interp, manager, "__exit__"), special(interp, manager, "__enter__")
    if leave is None or enter is None or not (_is_python(leave.function) and _is_python(enter.function)):
        raise Unsupported("B013", describe(manager))
    frame.stack.append(leave)
    push(frame, interp.call(enter, []))


def _enter_device(interp: Interpreter, frame: Frame, device: Constant) -> None:
    """`with torch.device(…)`: factories inside make their tensors there."""
    ambient = interp.tape.ambient
    interp.tape.set_ambient(replace(ambient, devices=(*ambient.devices, device.value)))
    frame.stack += [Method(interp.externals.fixed(torch.device.__exit__), device), device]


def _is_python(function: Value) -> bool:
    return isinstance(function, Object) and is_a(function.value, types.FunctionType)


@handles("WITH_EXCEPT_START")
def _with_except_start(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    leave, error = frame.stack[-4], frame.stack[-1]
    kind = python_type(error)
    if kind is None:
        raise Unsupported("B012", "with")
    if isinstance(error, ExceptionValue):
        trace: Value = TracebackValue(error.places)
    else:
        trace = attribute(interp, error, "__traceback__")
    push(frame, interp.call(leave, [interp.externals.fixed(kind), error, trace]))
