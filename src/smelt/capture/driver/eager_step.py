"""One instruction executed on real objects: what a graph break does between two graphs.

`STEPS` holds what can be done this way; any other instruction sends the rest of its frame to CPython.
"""

import builtins
import operator
from collections.abc import Callable
from types import CellType
from typing import Any

from smelt import _native
from smelt.capture.interpreter.operators import BINARY, COMPARE, INPLACE, UNARY
from smelt.capture.model.bytecode import CALLABLE_FIRST, Instruction
from smelt.capture.model.state import LiveFrame
from smelt.capture.opcodes.opcode_table import entering, take

Invoke = Callable[..., Any]
"""`invoke(function, *args, **kwargs)` runs user code with the region active and the user's line in tracebacks."""

Step = Callable[[LiveFrame, Instruction, Invoke], None]
STEPS: dict[str, Step] = {}
steps = entering(STEPS)


# What takes operands from the stack, the deepest first, and calls a function of them: how many, and the call.
_YIELDS: dict[str, tuple[int, Callable[..., tuple[Any, ...]]]] = {
    "LOAD_ATTR": (1, lambda instruction, owner: (getattr, owner, instruction.value)),
    "BINARY_OP": (2, lambda instruction, *both: (BINARY.get(instruction.value) or INPLACE[instruction.value], *both)),
    **{name: (1, lambda instruction, value: (UNARY[instruction.name], value)) for name in UNARY},
    "UNARY_NOT": (1, lambda instruction, value: (operator.not_, value)),
    "TO_BOOL": (1, lambda instruction, value: (operator.truth, value)),
    "BINARY_SUBSCR": (2, lambda instruction, container, key: (operator.getitem, container, key)),
    "BINARY_SLICE": (3, lambda instruction, container, *ends: (operator.getitem, container, slice(*ends))),
    "IS_OP": (2, lambda instruction, *both: (operator.is_not if instruction.arg else operator.is_, *both)),
    "LIST_TO_TUPLE": (1, lambda instruction, items: (tuple, items)),
    "GET_ITER": (1, lambda instruction, value: (iter, value)),
    "FORMAT_SIMPLE": (1, lambda instruction, value: (format, value, "")),
    "FORMAT_WITH_SPEC": (2, lambda instruction, value, spec: (format, value, spec)),
    "CONVERT_VALUE": (1, lambda instruction, value: ((str, repr, ascii)[instruction.arg - 1], value)),
}
# The same where nothing comes of the call.
_DOES: dict[str, tuple[int, Callable[..., tuple[Any, ...]]]] = {
    "STORE_ATTR": (2, lambda instruction, value, owner: (setattr, owner, instruction.value, value)),
    "DELETE_ATTR": (1, lambda instruction, owner: (delattr, owner, instruction.value)),
    "STORE_SUBSCR": (3, lambda instruction, value, container, key: (operator.setitem, container, key, value)),
    "DELETE_SUBSCR": (2, lambda instruction, container, key: (operator.delitem, container, key)),
    "STORE_SLICE": (4, lambda instruction, value, container, *ends: (operator.setitem, container, slice(*ends), value)),
}


def _is_iterable(value: Any) -> bool:
    """Whether there is a way to iterate: else Python's instructions have words of their own for it."""
    return hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")


def _extend(items: list[Any], value: Any) -> None:
    if not _is_iterable(value):
        raise TypeError(f"Value after * must be an iterable, not {type(value).__name__}")
    items.extend(value)


def _update(items: dict[Any, Any], value: Any) -> None:
    if not hasattr(value, "keys"):
        raise TypeError(f"'{type(value).__name__}' object is not a mapping")
    items.update(value)


# What puts the top of the stack into a container further down.
_FILLS = {
    "LIST_APPEND": list.append,
    "LIST_EXTEND": _extend,
    "SET_ADD": set.add,
    "SET_UPDATE": set.update,
    "DICT_UPDATE": _update,
}


@steps(*_YIELDS)
def _yield(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    count, call = _YIELDS[instruction.name]
    frame.stack.append(invoke(*call(instruction, *take(frame, count))))


@steps(*_DOES)
def _do(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    count, call = _DOES[instruction.name]
    invoke(*call(instruction, *take(frame, count)))


@steps(*_FILLS)
def _fill(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    item = frame.stack.pop()
    invoke(_FILLS[instruction.name], frame.stack[-instruction.arg], item)


@steps("CALL")
def _call(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    _call_with(frame, take(frame, instruction.arg), instruction.keywords, invoke)


@steps("CALL_KW")
def _call_kw(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    names = frame.stack.pop()
    _call_with(frame, take(frame, instruction.arg), names, invoke)


def _call_with(frame: LiveFrame, args: list[Any], names: tuple[str, ...], invoke: Invoke) -> None:
    first, second = take(frame, 2)
    if CALLABLE_FIRST:
        first, second = (_native.NULL, first) if second is _native.NULL else (first, second)
    if first is not _native.NULL:
        args, second = [second, *args], first
    positional = args[: len(args) - len(names)]
    keywords = dict(zip(names, args[len(args) - len(names) :], strict=True))
    if second is super and not args:
        frame.stack.append(invoke(_own_super, frame))
        return
    frame.stack.append(invoke(second, *positional, **keywords))


def _own_super(frame: LiveFrame) -> Any:
    """`super()`, which looks at the frame that it is called in."""
    names = frame.info.slot_names
    if not frame.info.code.co_argcount:
        raise RuntimeError("super(): no arguments")
    receiver = frame.slots[0]
    if type(receiver) is CellType and names[0] in frame.info.code.co_cellvars:
        receiver = receiver.cell_contents if _is_filled(receiver) else _native.NULL
    if receiver is _native.NULL:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in names:
        raise RuntimeError("super(): __class__ cell not found")
    return super(frame.slots[names.index("__class__")].cell_contents, receiver)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@steps("CALL_FUNCTION_EX")
def _call_function_ex(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    keywords = frame.stack.pop() if instruction.arg & 1 else {}
    positional = frame.stack.pop()
    function, other = take(frame, 2) if CALLABLE_FIRST else reversed(take(frame, 2))
    assert other is _native.NULL
    if not _is_iterable(positional) or not hasattr(keywords, "keys"):
        invoke(_spread, function, positional, keywords)
    frame.stack.append(invoke(function, *positional, **keywords))


def _spread(function: Any, positional: Any, keywords: Any) -> None:
    """Raise what Python says of arguments that cannot be spread out, by the name of the function."""
    function(*positional, **keywords)


@steps("LOAD_METHOD")
def _load_method(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    method = invoke(getattr, frame.stack.pop(), instruction.value)
    frame.stack.extend((method, _native.NULL) if CALLABLE_FIRST else (_native.NULL, method))


@steps("STORE_GLOBAL")
def _store_global(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.function.__globals__[instruction.value] = frame.stack.pop()


@steps("STORE_DEREF")
def _store_deref(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.slots[instruction.arg].cell_contents = frame.stack.pop()


@steps("COMPARE_OP")
def _compare_op(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    left, right = take(frame, 2)
    symbol = str(instruction.value)
    if symbol.startswith("bool("):
        frame.stack.append(invoke(operator.truth, invoke(COMPARE[symbol[5:-1]], left, right)))
        return
    frame.stack.append(invoke(COMPARE[symbol], left, right))


@steps("CONTAINS_OP")
def _contains_op(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    item, container = take(frame, 2)
    frame.stack.append(invoke(operator.contains, container, item) != bool(instruction.arg))


@steps("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
def _pop_jump(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    if invoke(operator.truth, frame.stack.pop()) == instruction.name.endswith("TRUE"):
        frame.jump(instruction.target)


@steps("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def _jump_or_pop(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    if invoke(operator.truth, frame.stack[-1]) == ("TRUE" in instruction.name):
        frame.jump(instruction.target)
    else:
        frame.stack.pop()


@steps("FOR_ITER")
def _for_iter(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    done = object()
    item = invoke(next, frame.stack[-1], done)
    if item is done:
        frame.stack.pop()
        frame.jump(instruction.target)
    else:
        frame.stack.append(item)


@steps("UNPACK_SEQUENCE")
def _unpack_sequence(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    items = invoke(_unpack, frame.stack.pop(), instruction.arg)
    frame.stack.extend(reversed(items))


def _unpack(value: Any, count: int) -> list[Any]:
    """Exactly `count` items, with Python's own words for too many or too few."""
    items: list[Any] = []
    for item in _to_unpack(value):
        if len(items) == count:
            raise ValueError(f"too many values to unpack (expected {count})")
        items.append(item)
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    return items


def _to_unpack(value: Any) -> Any:
    if not _is_iterable(value):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    return iter(value)


def _unpack_all(value: Any) -> list[Any]:
    return list(_to_unpack(value))


@steps("UNPACK_EX")
def _unpack_ex(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    items = invoke(_unpack_all, frame.stack.pop())
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    if len(items) < before + after:
        text = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        invoke(_raise, ValueError(text))
    middle = items[before : len(items) - after]
    frame.stack.extend(reversed([*items[:before], middle, *items[len(items) - after :]]))


def _raise(error: BaseException) -> None:
    raise error


@steps("FORMAT_VALUE")
def _format_value(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    spec = frame.stack.pop() if instruction.arg & 0x04 else ""
    value = frame.stack.pop()
    if instruction.arg & 0x03:
        value = invoke((str, repr, ascii)[(instruction.arg & 0x03) - 1], value)
    frame.stack.append(invoke(format, value, spec))


@steps("BUILD_SET")
def _build_set(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(set, take(frame, instruction.arg)))


@steps("BUILD_MAP")
def _build_map(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    flat = take(frame, 2 * instruction.arg)
    frame.stack.append(invoke(dict, zip(flat[::2], flat[1::2], strict=True)))


@steps("MAP_ADD")
def _map_add(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    key, value = take(frame, 2)
    invoke(operator.setitem, frame.stack[-instruction.arg], key, value)


@steps("IMPORT_NAME")
def _import_name(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    level, wanted = take(frame, 2)
    names = frame.function.__globals__
    find = names.get("__builtins__")
    function = (find if isinstance(find, dict) else vars(find or builtins))["__import__"]
    frame.stack.append(invoke(function, instruction.value, names, None, wanted, level))


@steps("BEFORE_WITH")
def _before_with(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    manager = frame.stack.pop()
    kind = type(manager)
    for name in ("__enter__", "__exit__"):
        if not hasattr(kind, name):
            text = f"'{kind.__name__}' object does not support the context manager protocol"
            invoke(_raise, TypeError(text if name == "__enter__" else f"{text} (missed __exit__ method)"))
    leave = kind.__exit__.__get__(manager, kind)
    entered = invoke(kind.__enter__, manager)
    frame.stack.extend((leave, entered))
