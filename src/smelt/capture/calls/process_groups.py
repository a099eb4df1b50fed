"""What a program asks of its process groups and meshes: answered while capturing, and asked again by a guard.

    funcol.all_reduce(x, "sum", dist.group.WORLD)   →   the group's name, "0": a constant, as long as it is that

Collectives themselves are operators like others: one that starts, and one that waits.
"""

from collections.abc import Callable
from typing import Any

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.static import is_a
from smelt.capture.model.values import Constant, Object, Sequence, Value, is_constant
from smelt.capture.tape.distributed import call_distributed

_FUNCTIONAL = "torch.distributed._functional_collectives."
_GROUPS = "torch.distributed.distributed_c10d."
_MESHES = "torch.distributed.device_mesh."

# By their names: importing these modules takes longer than most captures.
QUESTIONS: frozenset[str] = frozenset(
    {
        "torch.distributed.is_available",
        *(_FUNCTIONAL + name for name in ("_resolve_group", "_resolve_group_name", "_group_or_group_name")),
        *(_FUNCTIONAL + name for name in ("_expand_group",)),
        *(_GROUPS + name for name in ("WORLD", "is_initialized", "get_rank", "get_world_size", "get_backend")),
        *(_GROUPS + name for name in ("get_group_rank", "get_global_rank", "get_process_group_ranks")),
        *(_GROUPS + name for name in ("_get_default_group", "_get_group_size_by_name", "_resolve_process_group")),
        *(_GROUPS + name for name in ("_get_group_size", "_rank_not_in_group", "_find_or_create_pg_by_ranks_and_tag")),
        *(_MESHES + name for name in ("size", "get_rank", "get_local_rank", "get_group", "get_coordinate", "ndim")),
        *(_MESHES + name for name in ("shape", "device_type", "mesh_dim_names", "_is_current_rank_part_of_mesh")),
    }
)

# What makes `DTensor`s, or takes them apart: a node of the graph, as an operator is.
_OF_TENSORS = ("from_local", "to_local", "redistribute", "full_tensor")
CONVERSIONS: frozenset[str] = frozenset({"torch.distributed.tensor._api." + name for name in _OF_TENSORS})
_KNOWN_BY_IDENTITY = ("ProcessGroup", "DeviceMesh")
_LISTS = (list, tuple)


def ask(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The answer of a question, which a guard asks at each call: groups come and go under the same names."""
    real = interp.externals.guard_identity(function)
    plain = [_given(interp, value) for value in args]
    named = {name: _given(interp, value) for name, value in kwargs.items()}
    try:
        answer = real(*plain, **named)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise Unsupported("B019", f"{type(error).__name__}: {error}") from error
    if function.source is None:
        raise Unsupported("B002", real.__qualname__)
    function.source.check(("predicate", _answers(real, plain, named, answer)))
    interp.tree.why_not_persist = "process groups"
    return _value(interp, answer)


def convert(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`DTensor.from_local` and its kin. What is computed in the background is there when it is used: in a graph that
    is so for every tensor."""
    real = interp.externals.guard_identity(function)
    waiting = {"async_op": Constant(False)} if "async_op" in kwargs else {}
    run_check = kwargs.get("run_check")
    if run_check is not None and interp.plain(run_check) is not False:
        raise Unsupported("B002", f"{real.__qualname__}, with run_check=True")
    interp.tree.why_not_persist = "DTensors"
    for value in (*args, *kwargs.values()):
        if isinstance(value, Sequence):
            interp.externals.items(value)
    return call_distributed(interp.tape, real, tuple(args), {**kwargs, **waiting}, lambda each: _given(interp, each))


def place(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`Shard(0)`, `Replicate()`: a constant, as two of them are equal if they say the same."""
    named = {name: interp.plain(value) for name, value in kwargs.items()}
    return interp.compute(interp.externals.guard_identity(function), *map(interp.plain, args), **named)


def _answers(real: Any, plain: list[Any], named: dict[str, Any], answer: Any) -> Callable[[Any], bool]:
    def asked() -> Any:
        return real(*plain, **named)

    asked.__qualname__ = real.__qualname__
    return answers_as(asked, answer)


def answers_as(ask: Callable[[], Any], answer: Any) -> Callable[[Any], bool]:
    """The guard that a question about groups is answered as it was."""

    def answers_the_same(asked: Any) -> bool:
        try:
            current = ask()
        except Exception:  # the group is gone, or there is none yet
            return False
        return current is answer or (_is_plain(answer) and current == answer)

    answers_the_same.__qualname__ = f"answering as it did when {ask.__qualname__} was asked"
    return answers_the_same


def known_group(interp: Interpreter, value: Value) -> Any:
    """The process group that a value is, or None."""
    group = _given(interp, value)
    if group is not None and not is_known_by_identity(group):
        raise Unsupported("B002", f"a group of processes that is a {type(group).__qualname__}")
    return group


def _given(interp: Interpreter, value: Value) -> Any:
    if isinstance(value, Object) and is_known_by_identity(value.value):
        return interp.externals.guard_identity(value)
    if isinstance(value, Sequence) and value.kind in _LISTS:
        return value.kind(_given(interp, item) for item in interp.externals.items(value))
    if isinstance(value, Object) and is_a(value.value, type):
        return interp.externals.guard_identity(value)  # `dist.group.WORLD` is asked of a class
    return interp.plain(value)


def is_known_by_identity(real: Any) -> bool:
    """Whether something is a process group or a mesh: it stays what it is for as long as there is it."""
    kinds = type(real).__mro__
    return any(each.__name__ in _KNOWN_BY_IDENTITY and each.__module__.startswith("torch.") for each in kinds)


def _is_plain(answer: Any) -> bool:
    return is_constant(answer) or (type(answer) in _LISTS and all(map(_is_plain, answer)))


def _value(interp: Interpreter, answer: Any) -> Value:
    if is_constant(answer):
        return Constant(answer)
    if type(answer) in _LISTS and _is_plain(answer):
        return Sequence(type(answer), [_value(interp, item) for item in answer])
    if is_known_by_identity(answer):
        return interp.externals.fixed(answer)
    raise Unsupported("B002", f"a question to process groups, answered by a {type(answer).__qualname__}")
