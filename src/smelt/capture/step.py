"""One instruction executed on real objects: what a graph break does between two graphs.

`STEPS` holds what can be done this way; any other instruction sends the rest of its frame to CPython.
"""

import builtins
import operator
from collections.abc import Callable
from typing import Any

from smelt import _native
from smelt.capture.bytecode import CALLABLE_FIRST, Instruction
from smelt.capture.operators import BINARY, COMPARE, INPLACE, UNARY
from smelt.capture.state import LiveFrame

Invoke = Callable[..., Any]
"""`invoke(function, *args, **kwargs)` runs user code with the region active and the user's line in tracebacks."""

Step = Callable[[LiveFrame, Instruction, Invoke], None]
STEPS: dict[str, Step] = {}


def steps(*names: str) -> Callable[[Step], Step]:
    """Enter a function in `STEPS`."""

    def enter(step: Step) -> Step:
        STEPS.update(dict.fromkeys(names, step))
        return step

    return enter


def _take(frame: LiveFrame, count: int) -> list[Any]:
    if count == 0:
        return []
    taken = frame.stack[-count:]
    del frame.stack[-count:]
    return taken


@steps("CALL")
def _call(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    _call_with(frame, _take(frame, instruction.arg), instruction.keywords, invoke)


@steps("CALL_KW")
def _call_kw(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    names = frame.stack.pop()
    _call_with(frame, _take(frame, instruction.arg), names, invoke)


def _call_with(frame: LiveFrame, args: list[Any], names: tuple[str, ...], invoke: Invoke) -> None:
    first, second = _take(frame, 2)
    if CALLABLE_FIRST:
        first, second = (_native.NULL, first) if second is _native.NULL else (first, second)
    if first is not _native.NULL:
        args, second = [second, *args], first
    positional = args[: len(args) - len(names)]
    keywords = dict(zip(names, args[len(args) - len(names) :], strict=True))
    frame.stack.append(invoke(second, *positional, **keywords))


@steps("CALL_FUNCTION_EX")
def _call_function_ex(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    keywords = frame.stack.pop() if instruction.arg & 1 else {}
    positional = frame.stack.pop()
    function, other = _take(frame, 2) if CALLABLE_FIRST else reversed(_take(frame, 2))
    assert other is _native.NULL
    frame.stack.append(invoke(function, *positional, **keywords))


@steps("LOAD_ATTR")
def _load_attr(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(getattr, frame.stack.pop(), instruction.value))


@steps("LOAD_METHOD")
def _load_method(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    found = invoke(getattr, frame.stack.pop(), instruction.value)
    frame.stack.extend((found, _native.NULL) if CALLABLE_FIRST else (_native.NULL, found))


@steps("STORE_ATTR")
def _store_attr(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    value, target = _take(frame, 2)
    invoke(setattr, target, instruction.value, value)


@steps("DELETE_ATTR")
def _delete_attr(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    invoke(delattr, frame.stack.pop(), instruction.value)


@steps("STORE_GLOBAL")
def _store_global(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.function.__globals__[instruction.value] = frame.stack.pop()


@steps("STORE_DEREF")
def _store_deref(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.slots[instruction.arg].cell_contents = frame.stack.pop()


@steps("BINARY_OP")
def _binary_op(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    left, right = _take(frame, 2)
    function = BINARY.get(instruction.value) or INPLACE[instruction.value]
    frame.stack.append(invoke(function, left, right))


@steps(*UNARY)
def _unary(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(UNARY[instruction.name], frame.stack.pop()))


@steps("UNARY_NOT")
def _unary_not(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(operator.not_, frame.stack.pop()))


@steps("TO_BOOL")
def _to_bool(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(operator.truth, frame.stack.pop()))


@steps("COMPARE_OP")
def _compare_op(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    left, right = _take(frame, 2)
    symbol = str(instruction.value)
    if symbol.startswith("bool("):
        frame.stack.append(invoke(operator.truth, invoke(COMPARE[symbol[5:-1]], left, right)))
        return
    frame.stack.append(invoke(COMPARE[symbol], left, right))


@steps("CONTAINS_OP")
def _contains_op(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    item, container = _take(frame, 2)
    frame.stack.append(invoke(operator.contains, container, item) != bool(instruction.arg))


@steps("IS_OP")
def _is_op(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    left, right = _take(frame, 2)
    frame.stack.append((left is right) != bool(instruction.arg))


@steps("BINARY_SUBSCR")
def _binary_subscr(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    container, key = _take(frame, 2)
    frame.stack.append(invoke(operator.getitem, container, key))


@steps("STORE_SUBSCR")
def _store_subscr(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    value, container, key = _take(frame, 3)
    invoke(operator.setitem, container, key, value)


@steps("DELETE_SUBSCR")
def _delete_subscr(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    container, key = _take(frame, 2)
    invoke(operator.delitem, container, key)


@steps("BINARY_SLICE")
def _binary_slice(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    container, start, stop = _take(frame, 3)
    frame.stack.append(invoke(operator.getitem, container, slice(start, stop)))


@steps("STORE_SLICE")
def _store_slice(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    value, container, start, stop = _take(frame, 4)
    invoke(operator.setitem, container, slice(start, stop), value)


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


@steps("GET_ITER")
def _get_iter(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(iter, frame.stack.pop()))


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
    try:
        source = iter(value)
    except TypeError:
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object") from None
    items: list[Any] = []
    for item in source:
        if len(items) == count:
            raise ValueError(f"too many values to unpack (expected {count})")
        items.append(item)
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    return items


@steps("UNPACK_EX")
def _unpack_ex(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    items = invoke(list, frame.stack.pop())
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


@steps("FORMAT_SIMPLE")
def _format_simple(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(format, frame.stack.pop(), ""))


@steps("FORMAT_WITH_SPEC")
def _format_with_spec(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    value, spec = _take(frame, 2)
    frame.stack.append(invoke(format, value, spec))


@steps("CONVERT_VALUE")
def _convert_value(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke((str, repr, ascii)[instruction.arg - 1], frame.stack.pop()))


@steps("BUILD_SET")
def _build_set(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(invoke(set, _take(frame, instruction.arg)))


@steps("BUILD_MAP")
def _build_map(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    flat = _take(frame, 2 * instruction.arg)
    frame.stack.append(invoke(dict, zip(flat[::2], flat[1::2], strict=True)))


@steps("LIST_EXTEND")
def _list_extend(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    items = frame.stack.pop()
    invoke(list.extend, frame.stack[-instruction.arg], items)


@steps("SET_UPDATE")
def _set_update(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    items = frame.stack.pop()
    invoke(set.update, frame.stack[-instruction.arg], items)


@steps("SET_ADD")
def _set_add(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    item = frame.stack.pop()
    invoke(set.add, frame.stack[-instruction.arg], item)


@steps("LIST_APPEND")
def _list_append(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    item = frame.stack.pop()
    frame.stack[-instruction.arg].append(item)


@steps("MAP_ADD")
def _map_add(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    key, value = _take(frame, 2)
    invoke(operator.setitem, frame.stack[-instruction.arg], key, value)


@steps("LIST_TO_TUPLE")
def _list_to_tuple(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    frame.stack.append(tuple(frame.stack.pop()))


@steps("DICT_UPDATE")
def _dict_update(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    other = frame.stack.pop()
    invoke(dict.update, frame.stack[-instruction.arg], other)


@steps("IMPORT_NAME")
def _import_name(frame: LiveFrame, instruction: Instruction, invoke: Invoke) -> None:
    level, wanted = _take(frame, 2)
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
