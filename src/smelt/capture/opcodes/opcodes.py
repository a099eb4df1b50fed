"""What each instruction does to the virtual frame: locals, operators, containers, control flow, calls, strings.

One row of `table.HANDLERS` serves every Python version that has the instruction; what a version spells differently
`bytecode` has already renamed, and what only one version has is marked.
"""

import sys
from collections.abc import Callable
from typing import Any

from smelt.capture.interpreter.attributes import attribute, attribute_now, delete_attribute, store_attribute
from smelt.capture.interpreter.deferred_scalars import is_open, negated, open_truth
from smelt.capture.interpreter.dict_keys import hashable, identical
from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.interpreter.iterators import advance, drain, iterator, send, taken
from smelt.capture.interpreter.operators import (
    UNARY,
    binary,
    compare,
    contains,
    delete_subscript,
    mapped,
    store_subscript,
    subscript,
    truth,
    unary,
)
from smelt.capture.interpreter.sets import add_all, change_item, set_of
from smelt.capture.interpreter.special_methods import lacking, name_in_errors
from smelt.capture.interpreter.str_format import formatted, joined_text, text_of
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.bytecode import CALLABLE_FIRST, VERSION, Instruction, decode, slots_of_pair
from smelt.capture.model.open_numbers import OpenRange, Tested
from smelt.capture.model.policy import is_library
from smelt.capture.model.values import (
    NULL,
    Cell,
    Constant,
    Function,
    Generator,
    Instance,
    Iterator,
    Mapping,
    Null,
    OpenScalar,
    Sequence,
    Set,
    Slice,
    Value,
    ZippedIterator,
    describe,
    python_type,
)
from smelt.capture.opcodes.asserts import deciding
from smelt.capture.opcodes.class_bodies import global_value
from smelt.capture.opcodes.imports import import_now, is_imported
from smelt.capture.opcodes.opcode_table import handles, push, take
from smelt.capture.polyfills.by_name import MODULES

# locals, cells, names


@handles("NOP", "END_FOR")
def _nothing(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    pass


@handles("LOAD_FAST")
def _load_fast(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(_local(interp, frame, instruction.arg))


def _local(interp: Interpreter, frame: Frame, slot: int) -> Value:
    value = frame.slots[slot]
    if value is None:
        raise _unbound(frame, slot)
    return interp.externals.force(value)


def _unbound(frame: Frame, slot: int) -> Raised:
    name = frame.info.slot_names[slot]
    free = name in frame.info.code.co_freevars
    kind, where = ("free", " in enclosing scope") if free else ("local", "")
    text = f"cannot access {kind} variable '{name}' where it is not associated with a value{where}"
    return Raised((NameError if free else UnboundLocalError)(text), name, code="B018")


@handles("STORE_FAST")
def _store_fast(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    _store_local(frame, instruction.arg)


def _store_local(frame: Frame, slot: int) -> None:
    value = frame.stack.pop()
    frame.slots[slot] = None if isinstance(value, Null) else value  # 3.12 restores unbound names so


@handles("DELETE_FAST")
def _delete_fast(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    _local(interp, frame, instruction.arg)
    frame.slots[instruction.arg] = None


@handles("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")
def _pair(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.13
    for half, slot in slots_of_pair(instruction):
        if half == "LOAD_FAST":
            frame.stack.append(_local(interp, frame, slot))
        else:
            _store_local(frame, slot)


@handles("LOAD_FAST_AND_CLEAR")
def _load_and_clear(
    interp: Interpreter, frame: Frame, instruction: Instruction
) -> None:  # 3.12, inlined comprehensions
    value = frame.slots[instruction.arg]
    frame.stack.append(NULL if value is None else interp.externals.force(value))
    frame.slots[instruction.arg] = None


@handles("MAKE_CELL")
def _make_cell(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.slots[instruction.arg]
    frame.slots[instruction.arg] = Cell(None if value is None else interp.externals.force(value))


@handles("COPY_FREE_VARS")
def _copy_free_vars(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    first = frame.info.slot_count - instruction.arg
    frame.slots[first:] = frame.closure


def _cell(frame: Frame, slot: int) -> Cell:
    cell = frame.slots[slot]
    if not isinstance(cell, Cell):
        raise Unsupported("B012", f"access to {frame.info.slot_names[slot]}, which is not in a cell")
    return cell


@handles("LOAD_DEREF")
def _load_deref(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    contents = interp.externals.cell_contents(_cell(frame, instruction.arg))
    if contents is None:
        raise _unbound(frame, instruction.arg)
    frame.stack.append(contents)


@handles("DELETE_DEREF")
def _delete_deref(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    cell = _cell(frame, instruction.arg)
    if cell.source is not None or cell.contents is None:
        raise Unsupported("B012", "DELETE_DEREF")
    interp.before_mutation(cell)
    cell.contents = None


@handles("STORE_DEREF")
def _store_deref(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    cell = _cell(frame, instruction.arg)
    interp.before_mutation(cell)
    cell.contents = frame.stack.pop()


@handles("LOAD_GLOBAL")
def _load_global(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = global_value(interp, frame, instruction.value)
    pair = (value, NULL) if CALLABLE_FIRST else (NULL, value)
    frame.stack.extend(pair if instruction.arg & 1 else (value,))


@handles("STORE_GLOBAL")
def _store_global(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    names: Any = interp.externals.value(frame.globals.names, frame.globals.source)
    interp.before_setitem(names, instruction.value)
    names.items[instruction.value] = frame.stack.pop()


@handles("DELETE_GLOBAL")
def _delete_global(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    names: Any = interp.externals.value(frame.globals.names, frame.globals.source)
    if not interp.externals.removable(names, instruction.value):
        raise Unsupported("B018", instruction.value)
    interp.before_mutation(names)
    del names.items[instruction.value]


@handles("LOAD_CONST")
def _load_const(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    constant = instruction.value
    frame.stack.append(Set.constant(constant) if type(constant) is frozenset else interp.wrap_plain(constant))


@handles("LOAD_METHOD")
def _load_method(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    receiver = frame.stack.pop()
    if not CALLABLE_FIRST:
        frame.stack.append(NULL)
        push(frame, attribute(interp, receiver, instruction.value))
        return
    frame.stack.append(interp.now(attribute(interp, receiver, instruction.value)))
    frame.stack.append(NULL)


@handles("LOAD_SUPER_ATTR")
def _load_super_attr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.12
    function, kind, receiver = take(frame, 3)
    parent = interp.call(function, [kind, receiver])
    member = interp.now(attribute(interp, parent, instruction.value))
    pair = (member, NULL) if CALLABLE_FIRST else (NULL, member)
    frame.stack.extend(pair if instruction.arg & 1 else (member,))


@handles("IMPORT_NAME")
def _import_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    level, wanted = take(frame, 2)
    name = _absolute(interp, frame, instruction.value, interp.plain(level))
    if name is None or "__import__" in frame.globals.names:
        raise Unsupported("B012", f"import {instruction.value}")
    names = interp.plain(wanted) or ()
    if name in MODULES and names and is_library(frame.info.code):
        frame.stack.append(interp.externals.fixed(MODULES[name]))
        return
    if not is_imported(name, names):
        import_now(interp, name, names)
    top = name if names else name.partition(".")[0]
    known = interp.tree.fixed(sys.modules, "sys.modules")
    interp.externals.value(sys.modules[name], known.key(name))  # else Python imports it
    frame.stack.append(interp.externals.value(sys.modules[top], known.key(top)))


def _absolute(interp: Interpreter, frame: Frame, name: str, level: int) -> str | None:
    """The full name of a module: `from ..parts import x` counts from the package that the code is in."""
    if level == 0:
        return name
    package_name = interp.externals.global_name(frame.globals, "__package__")
    package = interp.plain(package_name) if package_name is not None else None
    if not isinstance(package, str) or package.count(".") < level - 1:
        return None
    return ".".join([*package.split(".")[: package.count(".") + 2 - level], *([name] if name else [])])


@handles("IMPORT_FROM")
def _import_from(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    push(frame, attribute(interp, frame.stack[-1], instruction.value))


# the stack


@handles("COPY")
def _copy(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.stack[-instruction.arg])


@handles("SWAP")
def _swap(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    stack, other = frame.stack, -instruction.arg
    stack[-1], stack[other] = stack[other], stack[-1]


# operators, and all else that works on the stack alone

_CONVERSIONS = ("", "__str__", "__repr__", "__ascii__")

# What takes operands from the stack, the deepest first, and leaves what comes of them: how many, and what that is.
_YIELDS: dict[str, tuple[int, Callable[..., Value]]] = {
    "PUSH_NULL": (0, lambda interp, at: NULL),
    "LOAD_ASSERTION_ERROR": (0, lambda interp, at: interp.externals.fixed(AssertionError)),
    "RETURN_GENERATOR": (0, lambda interp, at: Constant(None)),  # it exists already; its first `next` sends this
    "LOAD_ATTR": (1, lambda interp, at, owner: attribute(interp, owner, at.value)),
    "BINARY_OP": (2, lambda interp, at, *both: binary(interp, at.value, *both)),
    **dict.fromkeys(UNARY, (1, lambda interp, at, value: unary(interp, at.name, value))),
    "UNARY_NOT": (1, lambda interp, at, value: _negated(interp, value)),
    "IS_OP": (2, lambda interp, at, *both: Constant(identical(interp, *both) != bool(at.arg))),
    "CONTAINS_OP": (2, lambda interp, at, item, container: Constant(contains(interp, container, item) != bool(at.arg))),
    "BINARY_SUBSCR": (2, lambda interp, at, container, key: subscript(interp, container, key)),
    "BINARY_SLICE": (3, lambda interp, at, container, *ends: subscript(interp, container, _slice(*ends))),  # 3.12
    "GET_ITER": (1, lambda interp, at, value: iterator(interp, value)),
    "GET_YIELD_FROM_ITER": (1, lambda interp, at, value: iterator(interp, value)),
    "LIST_TO_TUPLE": (1, lambda interp, at, value: Sequence(tuple, drain(interp, value))),
    "CONVERT_VALUE": (1, lambda interp, at, value: text_of(interp, value, _CONVERSIONS[at.arg])),  # 3.13
    "FORMAT_SIMPLE": (1, lambda interp, at, value: formatted(interp, value, "")),  # 3.13
    "FORMAT_WITH_SPEC": (2, lambda interp, at, value, spec: formatted(interp, value, interp.plain(spec))),  # 3.13
}


def _negated(interp: Interpreter, value: Value) -> Value:
    return negated(interp, value) if is_open(interp, value) else Constant(not truth(interp, value))


# The same where nothing comes of them.
_DOES: dict[str, tuple[int, Callable[..., object]]] = {
    "POP_TOP": (1, lambda interp, at, value: None),
    "RETURN_VALUE": (1, lambda interp, at, value: interp.leave(value)),
    "RETURN_CONST": (0, lambda interp, at: interp.leave(interp.wrap_plain(at.value))),  # 3.12
    "STORE_ATTR": (2, lambda interp, at, value, owner: store_attribute(interp, owner, at.value, value)),
    "DELETE_ATTR": (1, lambda interp, at, owner: delete_attribute(interp, owner, at.value)),
    "STORE_SUBSCR": (3, lambda interp, at, value, container, key: store_subscript(interp, container, key, value)),
    "DELETE_SUBSCR": (2, lambda interp, at, container, key: delete_subscript(interp, container, key)),
    "STORE_SLICE": (  # 3.12
        4,
        lambda interp, at, value, container, *ends: store_subscript(interp, container, _slice(*ends), value),
    ),
}
# What is made of as many operands as the instruction says.
_BUILDS: dict[str, Callable[[Interpreter, list[Value]], Value]] = {
    "BUILD_TUPLE": lambda interp, items: Sequence(tuple, items),
    "BUILD_LIST": lambda interp, items: Sequence(list, items),
    "BUILD_SET": set_of,
    "BUILD_SLICE": lambda interp, parts: _slice(*parts),
    "BUILD_STRING": joined_text,
}


@handles(*_YIELDS)
def _yield(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    count, handler = _YIELDS[instruction.name]
    push(frame, handler(interp, instruction, *take(frame, count)))


@handles(*_DOES)
def _do(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    count, act = _DOES[instruction.name]
    act(interp, instruction, *take(frame, count))


@handles(*_BUILDS)
def _build(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(_BUILDS[instruction.name](interp, take(frame, instruction.arg)))


def _slice(start: Value, stop: Value, step: Value | None = None) -> Slice:
    return Slice(start, stop, Constant(None) if step is None else step)


@handles("TO_BOOL")
def _to_bool(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.13
    following = frame.info.instructions[frame.index]
    value = frame.stack.pop()
    if is_open(interp, value):
        frame.stack.append(open_truth(interp, value))
        return
    jumps = following.name in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
    frame.stack.append(Constant(deciding(interp, frame, value, following) if jumps else truth(interp, value)))


@handles("COMPARE_OP")
def _compare_op(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    left, right = take(frame, 2)
    symbol = str(instruction.value)
    if symbol.startswith("bool("):  # 3.13: the result is wanted as a bool
        answer = interp.now(compare(interp, symbol[5:-1], left, right))
        kept_open = is_open(interp, answer)
        frame.stack.append(open_truth(interp, answer) if kept_open else Constant(truth(interp, answer)))
        return
    push(frame, compare(interp, symbol, left, right))


# containers


@handles("BUILD_MAP")
def _build_map(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    flat = take(frame, 2 * instruction.arg)
    frame.stack.append(Mapping({hashable(interp, flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}))


@handles("BUILD_CONST_KEY_MAP")
def _build_const_key_map(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    keys = interp.plain(frame.stack.pop())
    frame.stack.append(Mapping(dict(zip(keys, take(frame, instruction.arg), strict=True))))


@handles("MAP_ADD")
def _map_add(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    key, value = take(frame, 2)
    target: Any = frame.stack[-instruction.arg]
    real = hashable(interp, key)
    interp.before_setitem(target, real)
    target.items[real] = value


def _append(interp: Interpreter, target: Any, value: Value) -> None:
    interp.before_append(target, is_display=True)
    target.items.append(value)


def _extend(interp: Interpreter, target: Any, items: Value) -> None:
    _refuse_to_spread(items)
    interp.before_append(target, is_display=True)
    drain(interp, items, target.raw_items, hinted=True)


def _update(interp: Interpreter, target: Any, other: Value, *, merges: bool = False) -> None:
    items = mapped(interp, other)
    if merges and set(items) & set(target.items):
        raise Unsupported("B019", "TypeError: multiple values for a keyword argument")
    interp.before_mutation(target, is_display=True)
    target.items.update(items)


# What puts the top of the stack into a container further down.
_FILLS: dict[str, Callable[[Interpreter, Any, Value], object]] = {
    "LIST_APPEND": _append,
    "LIST_EXTEND": _extend,
    "SET_ADD": lambda interp, target, value: change_item(interp, "add", target, value),
    "SET_UPDATE": add_all,
    "DICT_UPDATE": _update,
    "DICT_MERGE": lambda interp, target, other: _update(interp, target, other, merges=True),
}


@handles(*_FILLS)
def _fill(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    _FILLS[instruction.name](interp, frame.stack[-instruction.arg], value)


def _refuse_to_spread(value: Value) -> None:
    """`*value` of what is no iterable: Python has words of its own for it."""
    if isinstance(lacking(value, "__iter__"), Raised):
        raise Unsupported("B019", f"TypeError: * of {describe(value)}")


def _refuse_to_unpack(value: Value) -> None:
    kind, error = python_type(value), lacking(value, "__iter__")
    if kind is not None and isinstance(error, Raised):
        raised = Raised.of(TypeError(f"cannot unpack non-iterable {name_in_errors(kind)} object"))
        raised.named_class = kind
        raise raised


@handles("UNPACK_SEQUENCE")
def _unpack_sequence(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    _refuse_to_unpack(value)
    items = taken(interp, value, instruction.arg + 1)
    if len(items) > instruction.arg:
        raise Raised.of(ValueError(f"too many values to unpack (expected {instruction.arg})"))
    if len(items) < instruction.arg:
        text = f"not enough values to unpack (expected {instruction.arg}, got {len(items)})"
        raise Raised.of(ValueError(text))
    frame.stack.extend(reversed(items))


@handles("UNPACK_EX")
def _unpack_ex(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    _refuse_to_unpack(value)
    items = drain(interp, value)
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    if len(items) < before + after:
        text = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise Raised.of(ValueError(text))
    middle = Sequence(list, items[before : len(items) - after])
    frame.stack.extend(reversed([*items[:before], middle, *items[len(items) - after :]]))


# control flow


@handles("JUMP")
def _jump(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.jump(instruction.target)


@handles("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
def _pop_jump(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if is_open(interp, frame.stack[-1]) and python_type(frame.stack[-1]) is not bool:
        frame.stack[-1] = open_truth(interp, frame.stack[-1])
        frame.index -= 1  # its truth is part of the graph; the branch comes now
        return
    if deciding(interp, frame, frame.stack.pop(), instruction) == instruction.name.endswith("TRUE"):
        frame.jump(instruction.target)


@handles("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
def _pop_jump_none(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    is_none = type(value) is Constant and value.value is None
    if is_none == (instruction.name == "POP_JUMP_IF_NONE"):
        frame.jump(instruction.target)


@handles("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def _jump_or_pop(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if is_open(interp, frame.stack[-1]):
        value = frame.stack[-1]
        frame.stack[-1] = Instance(Tested, Mapping({"value": value, "test": open_truth(interp, value)}))
        frame.index -= 1
        return
    if python_type(frame.stack[-1]) is Tested:
        raise Unsupported("B003", "a tensor's value decides the branch")
    if truth(interp, frame.stack[-1]) == ("TRUE" in instruction.name):
        frame.jump(instruction.target)
    else:
        frame.stack.pop()


@handles("FOR_ITER")
def _for_iter(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    source = frame.stack[-1]
    if python_type(source) is OpenRange:
        _open_for_iter(interp, frame, instruction)
        return
    if isinstance(source, Iterator | ZippedIterator):
        source.looped = True
    item = advance(interp, source)
    if item is None:
        frame.stack.pop()
        frame.jump(instruction.target)
    else:
        frame.stack.append(item)


def _open_for_iter(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    """A loop over an `OpenRange`: its test is computed, then a branch, then, where there is one, the number taken."""
    numbers = frame.stack[-1]
    test = attribute_now(interp, numbers, "test")
    if isinstance(test, OpenScalar):
        raise Unsupported("B003", "how often a loop runs")
    start, stop, step = (attribute_now(interp, numbers, name) for name in ("start", "stop", "step"))
    if interp.plain(test) is None:
        ahead = compare(interp, "<" if interp.plain(step) > 0 else ">", start, stop)
        store_attribute(interp, numbers, "test", ahead)
        frame.index -= 1
        return
    store_attribute(interp, numbers, "test", Constant(None))
    if interp.plain(test):
        store_attribute(interp, numbers, "start", binary(interp, "+", start, step))
        frame.stack.append(start)
    else:
        frame.stack.pop()
        frame.jump(instruction.target)


@handles("YIELD_VALUE")
def _yield_value(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    interp.yielded = frame.stack.pop()
    interp.frames.pop()


@handles("SEND")
def _send(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    sent = frame.stack.pop()
    item = send(interp, sent, frame.stack[-1])
    if item is not None:
        frame.stack.append(item)
        return
    source = frame.stack[-1]
    result = source.result if isinstance(source, Generator) else None
    if VERSION < (3, 12):
        frame.stack.pop()  # from 3.12 END_SEND drops the iterator
    frame.stack.append(result or Constant(None))
    frame.jump(instruction.target)


@handles("END_SEND")
def _end_send(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.12
    del frame.stack[-2]


# calls and functions


@handles("CALL")
def _call(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    args = take(frame, instruction.arg)
    _call_with(interp, frame, args, instruction.keywords)


@handles("CALL_KW")
def _call_kw(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.13
    names = interp.plain(frame.stack.pop())
    _call_with(interp, frame, take(frame, instruction.arg), names)


def _call_with(interp: Interpreter, frame: Frame, args: list[Value], names: tuple[str, ...]) -> None:
    first, second = take(frame, 2)
    if CALLABLE_FIRST:
        first, second = (NULL, first) if isinstance(second, Null) else (first, second)
    if not isinstance(first, Null):
        args = [second, *args]
        second = first
    positional = args[: len(args) - len(names)]
    keywords = dict(zip(names, args[len(args) - len(names) :], strict=True))
    push(frame, interp.call(second, positional, keywords))


@handles("CALL_FUNCTION_EX")
def _call_function_ex(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    keywords: dict[str, Value] = {}
    if instruction.arg & 1:
        keywords = {key: interp.externals.force(item) for key, item in mapped(interp, frame.stack.pop()).items()}
    spread = frame.stack.pop()
    _refuse_to_spread(spread)
    positional = drain(interp, spread, hinted=True)
    if CALLABLE_FIRST:
        frame.stack.pop()
        function = frame.stack.pop()
    else:
        function = frame.stack.pop()
        frame.stack.pop()
    push(frame, interp.call(function, positional, keywords))


@handles("MAKE_FUNCTION")
def _make_function(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    code = frame.stack.pop()
    assert isinstance(code, Constant)
    flags = instruction.arg
    closure = _closure(frame.stack.pop()) if flags & 0x08 else ()
    annotations = frame.stack.pop() if flags & 0x04 else None
    keyword_defaults = frame.stack.pop() if flags & 0x02 else None
    defaults = frame.stack.pop() if flags & 0x01 else None
    assert keyword_defaults is None or isinstance(keyword_defaults, Mapping)
    assert defaults is None or isinstance(defaults, Sequence)
    info = decode(code.value)
    frame.stack.append(
        Function(info, frame.globals, info.code.co_qualname, defaults, keyword_defaults, closure, annotations)
    )


@handles("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:  # 3.13
    value, function = take(frame, 2)
    if not isinstance(function, Function):
        raise Unsupported("B012", "SET_FUNCTION_ATTRIBUTE")
    if instruction.arg == 0x01 and isinstance(value, Sequence):
        function.defaults = value
    elif instruction.arg == 0x02 and isinstance(value, Mapping):
        function.keyword_defaults = value
    elif instruction.arg == 0x04:
        function.annotations = value
    else:
        function.closure = _closure(value)
    frame.stack.append(function)


def _closure(cells: Value) -> tuple[Cell, ...]:
    assert isinstance(cells, Sequence)
    return tuple(cells.items)


# strings


@handles("FORMAT_VALUE")
def _format_value(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    spec = interp.plain(frame.stack.pop()) if instruction.arg & 0x04 else ""
    value = frame.stack.pop()
    if instruction.arg & 0x03:
        value = text_of(interp, value, _CONVERSIONS[instruction.arg & 0x03])
    frame.stack.append(formatted(interp, value, spec))
