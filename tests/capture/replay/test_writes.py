"""Writes to objects from outside: captured without a break, replayed in full, identity kept, seen by later reads."""

import copy
import dataclasses
import enum
import functools
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import smelt
from smelt.capture import graph_break
from tests.capture.programs import Captured, observe

World = dict[str, Any]


def picture(value: Any, seen: dict[int, int] | None = None) -> Any:
    """An object and all it reaches as plain data; an object met again is named by when it was met first."""
    seen = {} if seen is None else seen
    if isinstance(value, int | float | str | bool | type | enum.Enum | None):
        return value
    if id(value) in seen:
        return f"object {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor):
        return ("tensor", value.tolist(), value.requires_grad)
    if isinstance(value, dict):
        own = picture(vars(value), seen) if hasattr(value, "__dict__") else None
        return (type(value), [(picture(key, seen), picture(item, seen)) for key, item in value.items()], own)
    if isinstance(value, set):
        return ("set", sorted(value))
    if isinstance(value, list | tuple):
        return (type(value), [picture(item, seen) for item in value])
    if isinstance(value, types.FunctionType):
        return ("function", [picture(cell.cell_contents, seen) for cell in value.__closure__ or ()])
    return (type(value), picture(vars(value), seen))


def both(program: Callable[..., Any], make: Callable[[], World], *, calls: int = 3, runner: Captured | None = None):
    """Run `program(x, **world)` plainly and captured, each on a world of its own; worlds and results must agree."""
    runner = runner or Captured()
    plain, mine = make(), make()
    for call in range(calls):
        x = torch.arange(3.0) + call
        expected = observe(lambda: program(x, **plain))  # noqa: B023
        found = observe(lambda: runner(program, x, **mine))  # noqa: B023
        assert (type(found.error), str(found.error)) == (type(expected.error), str(expected.error))
        assert found.printed == expected.printed
        assert picture((found.result, mine)) == picture((expected.result, plain))
    return runner


def whole(program: Callable[..., Any], make: Callable[[], World], *, calls: int = 3) -> Captured:
    runner = both(program, make, calls=calls)
    assert not runner.breaks, runner.texts("breaks")
    assert runner.graphs
    return runner


class Box:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def box() -> World:
    return {"box": Box(n=1, log=[], table={"a": 1}, other=None)}


def attributes(x: torch.Tensor, box: Box) -> Any:
    box.last = x + 1
    box.other = box.last * 2
    box.log = [box.last, box.other]
    return box.last + box.log[1]


def deleted(x: torch.Tensor, box: Box) -> Any:
    box.gone = x
    del box.gone
    name = "late"
    setattr(box, name, x * 2)
    return hasattr(box, "gone"), getattr(box, "gone", x) + box.late


def through_dict(x: torch.Tensor, box: Box) -> Any:
    box.__dict__["z"] = x * 3
    vars_of = box.__dict__
    box.y = x
    return box.z + vars_of["y"], "z" in box.__dict__


def mutated_list(x: torch.Tensor, box: Box) -> Any:
    log = box.log
    log.append(x)
    log.extend([x + 1, x + 2])
    log.insert(0, x * 2)
    first = log.pop(0)
    log[0] = first
    del log[1]
    log += [x]
    return log[-1] + first, log, len(log)


def mutated_dict(x: torch.Tensor, box: Box) -> Any:
    table = box.table
    table["b"] = x
    table.update(c=x + 1, a=2)
    popped = table.pop("a")
    table["a"] = popped + 1
    table.setdefault("d", x * 2)
    return table["b"] + table.get("c"), list(table), len(table)


def emptied(x: torch.Tensor, box: Box) -> Any:
    box.log.append(x)
    box.log.clear()
    box.table.clear()
    box.table["z"] = x + 1
    return x * 2, len(box.log)


def nested(x: torch.Tensor, box: Box) -> Any:
    def remember(value: Any) -> Any:
        box.log.append(value)
        return value * 2

    for step in range(3):
        x = remember(x + step)
        box.n = step
    return x, box.n


def aliased(x: torch.Tensor, one: Any, two: Any) -> Any:
    one.append(x)
    two.append(x + 1)
    return one[-1] + two[-1], len(one)


def aliased_objects(x: torch.Tensor, one: Box, two: Box) -> Any:
    one.n = x
    return two.n + 1


PROGRAMS = [attributes, deleted, through_dict, mutated_list, mutated_dict, emptied, nested]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_of_an_object(program: Callable[..., Any]) -> None:
    whole(program, box)


def test_a_list_may_grow_without_a_new_version() -> None:
    def program(x: torch.Tensor, log: list[Any]) -> Any:
        log.append(x * 2)
        return x + 1

    assert not whole(program, lambda: {"log": []}, calls=5).recompiles


def test_what_is_only_written_is_not_guarded() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        box.last = x * 2
        box.table["new"] = box.last
        return x + 1

    runner = Captured()
    target = Box(table={})
    for value in (None, 3, "text", [1]):
        target.last = value
        runner(program, torch.ones(2), target)
    assert not runner.recompiles
    assert len(runner.graphs) == 1


def test_what_is_read_before_it_is_written_is_guarded() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        box.n = box.n + 1
        return x * box.n

    whole(program, box, calls=4)


def test_one_list_under_two_names() -> None:
    def shared() -> World:
        log: list[Any] = []
        return {"one": log, "two": log}

    runner = Captured()
    both(aliased, shared, runner=runner)
    both(aliased, lambda: {"one": [], "two": []}, runner=runner)
    both(aliased, shared, runner=runner)
    runner = Captured()
    both(aliased, lambda: {"one": [], "two": []}, runner=runner)
    both(aliased, shared, runner=runner)


def test_one_object_under_two_names() -> None:
    def shared() -> World:
        only = Box(n=torch.zeros(3))
        return {"one": only, "two": only}

    def apart() -> World:
        return {"one": Box(n=torch.zeros(3)), "two": Box(n=torch.ones(3))}

    for order in ((shared, apart, shared), (apart, shared, apart)):
        runner = Captured()
        for make in order:
            both(aliased_objects, make, runner=runner)


def test_an_old_object_in_a_new_one_and_back() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        fresh = [x, box.log]
        box.fresh = fresh
        fresh.append(fresh[0] + 1)
        box.log.append(fresh)
        return fresh

    runner = Captured()
    target = box()["box"]
    log = target.log
    result = runner(program, torch.ones(2), target)
    assert not runner.breaks
    assert target.fresh is result
    assert target.log is log is result[1]
    assert log[0] is result


@dataclasses.dataclass
class Record:
    value: Any
    notes: list[Any] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    first: Any
    second: Any = 7


class Table(OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Guarded:
    def __init__(self) -> None:
        self._value = 0
        self.writes = 0

    @property
    def value(self) -> Any:
        return self._value

    @value.setter
    def value(self, new: Any) -> None:
        self.writes += 1
        self._value = new


class Counting:
    def __init__(self) -> None:
        object.__setattr__(self, "names", [])

    def __setattr__(self, name: str, value: Any) -> None:
        self.names.append(name)
        super().__setattr__(name, value)


def test_new_objects_are_real_afterwards() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        record = Record(x + 1)
        record.notes.append(record)
        pair = Pair(record)
        table = Table()
        table["key"] = record.value
        ordered = OrderedDict(a=pair, b=table)
        ordered.move_to_end("a")
        box.kept = ordered
        return ordered, record, table.key + x

    whole(program, box)


def test_properties_and_own_setattr() -> None:
    def program(x: torch.Tensor, guarded: Guarded, counting: Counting) -> Any:
        guarded.value = x
        guarded.value = guarded.value + 1
        counting.late = x
        return guarded.value * 2 + counting.late, guarded.writes

    whole(program, lambda: {"guarded": Guarded(), "counting": Counting()})


def test_what_cannot_be_followed_is_a_break() -> None:
    class Target:
        value: Any = None

    def program(x: torch.Tensor, target: type[Target]) -> Any:
        y = x * 2
        target.value = y  # of a class: whoever reads it through an object would have to be told
        return target.value + 1

    runner = Captured()
    result = runner(program, torch.ones(2), Target)
    assert runner.break_codes[0] == "B005"
    assert torch.equal(result, torch.full((2,), 3.0)) and torch.equal(Target.value, torch.full((2,), 2.0))


def test_writes_to_other_tensors_than_one_that_is_formatted() -> None:
    def program(x: torch.Tensor, total: torch.Tensor) -> Any:
        text = f"{x.sum()}"
        total.add_(1)
        return text, total * 2

    whole(program, lambda: {"total": torch.zeros(2)})


def test_writes_to_a_tensor_that_is_formatted_wait() -> None:
    def computed(x: torch.Tensor, total: torch.Tensor) -> Any:
        y = x.sum()
        text = f"{y}"
        y.view(1).add_(1)
        return text, y

    def given(x: torch.Tensor, total: torch.Tensor) -> Any:
        text = f"{total}"
        x.add_(1)
        return text, x

    for program in (computed, given):
        memory = torch.ones(2)
        expected = program(torch.ones(2), torch.ones(2)) if program is computed else program(memory, memory[:1])
        memory = torch.ones(2)
        runner = Captured()
        assert str(runner(program, memory, memory[:1])) == str(expected)
        assert runner.break_codes[0] == "B005"


def test_sets() -> None:
    def program(x: torch.Tensor, seen: set[Any]) -> Any:
        seen.add("b")
        seen.discard("a")
        seen.update({"c", "d"})
        return x * len(seen), "a" in seen

    whole(program, lambda: {"seen": {"a"}})


COUNTER = 0
LATEST: Any = None


def test_globals() -> None:
    def program(x: torch.Tensor) -> Any:
        global LATEST, COUNTER
        LATEST = x * 2
        COUNTER = len("four")
        return read_latest() + COUNTER

    def read_latest() -> Any:
        return LATEST

    runner = Captured()
    for value in range(3):
        x = torch.full((2,), float(value))
        assert torch.equal(runner(program, x), x * 2 + 4)
        assert torch.equal(LATEST, x * 2)
    assert COUNTER == 4 and not runner.breaks and not runner.recompiles


def test_a_global_seen_through_the_module() -> None:
    module = types.ModuleType("made_up")
    source = "def write(x):\n    global value\n    value = x * 2\n    return this.value + 1\n"
    exec(source, module.__dict__)
    module.this = module  # type: ignore[attr-defined]
    runner = Captured()
    assert torch.equal(runner(module.write, torch.ones(2)), torch.full((2,), 3.0))
    assert torch.equal(module.value, torch.full((2,), 2.0)) and not runner.breaks


def test_closures() -> None:
    def make() -> World:
        total: Any = 0
        last: Any = None

        def add(x: torch.Tensor) -> Any:
            nonlocal total, last
            total = x.shape[0] + total
            last = x * 2
            return read() + total

        def read() -> Any:
            return last

        return {"add": add, "reader": read}

    whole(lambda x, add, reader: (add(x), reader()), make)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.cache: Any = None
        self.log: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        self.mean = self.mean * 0.5 + y.detach() * 0.5
        self.cache = y
        self.log.append(self.cache)
        return self.cache + self.mean


def test_a_module_writes_to_itself() -> None:
    def make() -> World:
        torch.manual_seed(0)
        return {"module": nn.Sequential(Stateful(), Stateful())}

    runner, plain, mine = Captured(), make()["module"], make()["module"]
    for call in range(3):
        x = torch.arange(3.0) + call
        expected, found = plain(x), runner(mine, x)
        assert torch.equal(expected, found)
        for one, other in zip(plain, mine, strict=True):
            assert list(vars(other)) == list(vars(one))
            assert list(other._buffers) == ["mean"] and torch.equal(other.mean, one.mean)
            assert other.cache is other.log[-1] and torch.equal(other.cache, one.cache)
            assert len(other.log) == call + 1
    assert not runner.breaks and not runner.recompiles


@pytest.mark.parametrize("beside_torch_compile", [False, True])
def test_a_module_made_inside(monkeypatch: pytest.MonkeyPatch, beside_torch_compile: bool) -> None:
    if beside_torch_compile:  # which notes for itself what modules are made, once it has been used in the process
        import torch._dynamo.mutation_guard as guard

        monkeypatch.setattr(nn.Module, "__init__", nn.Module.__init__)
        monkeypatch.setattr(nn.Module, "__setstate__", nn.Module.__setstate__)
        monkeypatch.setattr(nn.Module, "___needs_generation_tag_patch", True, raising=False)
        guard.install_generation_tagging_init()
        assert nn.Module.__init__.__module__ == guard.__name__

    def program(x: torch.Tensor) -> Any:
        loss = nn.MSELoss()
        loss.note = x
        return loss(x, torch.zeros_like(x)) + loss.note.sum()

    runner = Captured()
    x = torch.ones(3)
    assert torch.equal(runner(program, x), program(x)) and not runner.breaks


def test_writes_before_a_break_are_done_before_it() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        box.last = x * 2
        box.log.append(1)
        print(len(box.log), box.last.shape)
        box.log.append(2)
        box.last = box.last + 1
        return box.last

    runner = both(program, box)
    assert set(runner.break_codes) == {"B002"}


def test_writes_before_an_exception_are_done_and_later_ones_not() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        box.log.append(x + 1)
        box.n = 2
        box.table["missing"]
        box.log.append(3)
        return x

    both(program, box)


def test_nothing_is_written_if_the_graph_raises() -> None:
    attempts: list[int] = []

    def failing(traced: Any) -> Callable[..., Any]:
        def run(*tensors: Any) -> Any:
            attempts.append(1)
            raise RuntimeError("no")

        return run

    def program(x: torch.Tensor, box: Box) -> Any:
        box.log.append(x * 2)
        box.n = box.n + 1
        return x + 1

    runner = Captured()
    runner.region = type(runner.region)(failing)
    both(program, box, calls=2, runner=runner)
    assert attempts


def test_a_break_between_writes_in_a_loop_and_a_callee() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        for step in range(3):
            x = write(x, box, step)
        return x, box.log

    def write(x: torch.Tensor, box: Box, step: int) -> Any:
        box.log.append(x)
        if step == 1:
            graph_break()
        box.n = step
        box.log[-1] = x + step
        return box.log[-1] * 2

    both(program, box)


def test_an_iterator_over_a_list_that_is_written() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        found = []
        for item in box.items:
            found.append(item * 2)
            if len(box.items) < 5:
                box.items.append(x)
            if len(found) == 2:
                graph_break()
        return found

    both(program, lambda: {"box": Box(items=[torch.ones(3), torch.zeros(3)])})


CALLS: list[int] = []


@functools.lru_cache(None)
def cached(n: int) -> int:
    CALLS.append(n)
    return n * 2


def test_cached_functions_are_called_once() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        return x * cached(n) + cached(n)

    CALLS.clear()
    runner = Captured()
    for _ in range(3):
        assert torch.equal(runner(program, torch.ones(2), 3), torch.full((2,), 12.0))
    assert CALLS == [3] and not runner.breaks
    cached.cache_clear()
    runner(program, torch.ones(2), 3)
    assert CALLS == [3, 3]


@functools.lru_cache(None)
def cached_reader() -> int:
    return SETTING


SETTING = 1


def test_a_cached_function_sees_what_was_written_before() -> None:
    def program(x: torch.Tensor) -> Any:
        global SETTING
        SETTING = 5
        return x * cached_reader()

    runner = Captured()
    assert torch.equal(runner(program, torch.ones(2)), torch.full((2,), 5.0))


def test_a_cached_function_makes_tensors_of_the_programs_own() -> None:
    @functools.cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(float(n)) + (1.0 if torch.is_grad_enabled() else 2.0)

    def program(x: torch.Tensor, n: int) -> Any:
        with torch.no_grad():
            first = table(n)
        return x * first + table(n + 1)[1:]

    runner = Captured()
    for _ in range(2):
        assert torch.equal(runner(program, torch.ones(2), 2), torch.tensor([4.0, 6.0]))
    assert type(table(2)) is torch.Tensor and torch.equal(table(2), torch.tensor([2.0, 3.0]))
    with torch.inference_mode():
        runner(program, torch.ones(4), 4)
    assert table(4).is_inference() and not table(2).is_inference()
    with torch.device("meta"):
        assert runner(lambda n: table(n) * 2, 7).is_meta
    assert table(7).is_meta


def test_copies() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        box.table["n"] = [1, (2, box.log)]
        twin, near = copy.deepcopy(box), copy.copy(box)
        twin.log.append("deep")
        near.log.append("near")
        near.own = 3
        return twin, near, x * 2

    whole(program, box)


class Sum:
    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __iadd__(self, other: Any) -> "Sum":
        self.parts.append(other)
        return self

    def __add__(self, other: Any) -> "Sum":
        return Sum([*self.parts, other])


def test_own_operators_in_place() -> None:
    def program(x: torch.Tensor, total: Sum) -> Any:
        total += x
        other = total + 1
        return other, total.parts[-1] * 2

    whole(program, lambda: {"total": Sum([])})


def test_adding_a_tensor_to_a_number_in_place() -> None:
    def program(x: torch.Tensor) -> Any:
        total = 0
        total += x * 2
        total += x
        return total

    whole(program, dict)


class Stepping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.average = 0.5
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.average = self.average * 0.9 + 0.1
        return self.lin(x), self.calls - 1


def test_counters_need_no_new_version() -> None:
    runner, mine, plain = Captured(), Stepping(), Stepping()
    for call in range(12):
        assert runner(mine, torch.ones(3))[1] == plain(torch.ones(3))[1] == call
    assert (mine.calls, mine.average) == (plain.calls, plain.average)
    assert not runner.breaks and not runner.recompiles and len(runner.graphs) == 1


def test_a_number_that_decides_is_guarded_after_all() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        box.n = box.n + 1
        box.twice = box.n * 2
        if box.n > 3:
            return x * box.n
        return x + box.twice

    whole(program, box, calls=6)


def test_a_number_becomes_another_kind_of_number() -> None:
    def program(x: torch.Tensor, box: Box) -> Any:
        box.n = box.n + box.n
        return x * 2

    runner = Captured()
    for start in (1, 2.5, True, 3):
        target = Box(n=start)
        runner(program, torch.ones(2), target)
        assert target.n == start + start and type(target.n) is type(start + start)


def test_a_defaultdict_is_copied_with_its_factory() -> None:
    def program(x: torch.Tensor) -> Any:
        table: Any = defaultdict(list)
        table["a"].append(x)
        twin, deep = table.copy(), copy.deepcopy({"n": defaultdict(int, k=1)})
        twin["b"].append(x * 2)
        deep["n"]["new"] += 1
        return table, twin, deep

    whole(program, dict)


def test_a_property_that_is_deleted_and_a_flag_that_is_contained() -> None:
    class Kind(enum.Flag):
        ONE = 1
        TWO = 2

    class Kept:
        def __init__(self) -> None:
            self._k = 5

        @property
        def k(self) -> int:
            return self._k

        @k.deleter
        def k(self) -> None:
            self._k -= 1

    def program(x: torch.Tensor, kept: Any, kind: Any) -> Any:
        del kept.k
        return x * kept.k if Kind.TWO in kind else x, Kind.ONE in kind

    whole(program, lambda: {"kept": Kept(), "kind": Kind.ONE | Kind.TWO})


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_a_tensor_that_is_made_written_and_kept(backend: str, differentiable: bool) -> None:
    """Such tensors are made before the graph runs, unless gradients flow through them."""

    class Holder:
        total: torch.Tensor
        count: torch.Tensor
        seen: torch.Tensor

    def program(holder: Any, x: torch.Tensor) -> torch.Tensor:
        holder.total = torch.zeros_like(x)
        holder.count = torch.tensor(1.0)
        holder.count += 1
        holder.seen = holder.total[0]
        holder.total.add_(x if differentiable else x.detach())
        holder.total.mul_(holder.count)
        return x * holder.total

    compiled = smelt.compile(program, fullgraph=True, backend=backend)
    kept = []
    for number in range(3):
        ours, theirs = Holder(), Holder()
        mine, plain = (torch.full((2, 3), float(number + 1), requires_grad=True) for _ in range(2))
        got, wanted = compiled(ours, mine), program(theirs, plain)
        assert picture(vars(ours)) == picture(vars(theirs))
        assert ours.total.is_leaf == theirs.total.is_leaf == (not differentiable)
        assert differentiable or ours.total._version == theirs.total._version
        assert ours.seen._base is ours.total
        got.sum().backward()
        wanted.sum().backward()
        assert torch.equal(got, wanted) and torch.equal(mine.grad, plain.grad)  # type: ignore[arg-type]
        kept.append(ours.total)
    assert len({tensor.data_ptr() for tensor in kept}) == 3
