"""A capture of an earlier process on its way back: objects found by name, or taken from where the guards meet them.

record + a state   →   LoadedCapture(guards, plan, entry_state), or `NotPersistable`: not the state that was captured
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from smelt import _native
from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.capture.calls.lru_cache import WRAPPER, Remembered
from smelt.capture.model.policy import OF_THE_MACHINE, known_name
from smelt.capture.model.state import LiveFrame, flat
from smelt.capture.model.static import ABSENT, static_lookup
from smelt.capture.persist.object_names import EQUAL, WRAPPERS, NotPersistable, find, forget_classes, is_like
from smelt.capture.persist.plan_form import plan_of, step_of
from smelt.capture.persist.serialize import SerializedCapture, refuse, stamp_of, stamps_of
from smelt.capture.replay.plan import EntryState, FrameRecipe, Return, alias_holds
from smelt.capture.replay.rollback import WritePolicy
from smelt.ir.graph import PersistentCompiler
from smelt.ir.json_values import decode, encode
from smelt.ir.nodes.ambient import Ambient, without_default_devices


@dataclass(frozen=True, slots=True)
class LoadedCapture:
    """A capture of an earlier process, with the guards and the plan that it has in this one."""

    guards: "_native.Guards"
    plan: Return
    entry_state: EntryState


def verify_roundtrip(capture: SerializedCapture, record: dict[str, Any], frame: LiveFrame) -> None:
    """What is read back here and now must be what was written, object by object."""
    loader = CaptureLoader(record, frame)
    loader.resolve_objects()
    if not _same(loader.roots(), capture.roots):
        raise NotPersistable("it does not read back as what was written")


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) is functools.partial:
        return _same((one.func, *one.args), (other.func, *other.args)) and one.keywords == other.keywords == {}
    return type(one) in EQUAL and repr(one) == repr(other)


class CaptureLoader:
    """One record on its way back: objects found by name, or taken from where the guards meet them."""

    def __init__(self, record: dict[str, Any], frame: LiveFrame) -> None:
        forget_classes()
        self.record = record
        self.frame = frame
        self.state = flat([frame])
        self.forms = record["objects"]
        self.reals: list[Any] = []
        self._numbers: dict[int, int] = {}
        self.accessors: dict[int, Any] = {}
        self.checks: dict[int, Any] = {}
        self.remembered: list[Remembered] = []

    def load(self, compiler: PersistentCompiler) -> LoadedCapture | None:
        """The capture, if all its guards hold of the state."""
        if any(stamp_of(file) != stamp for file, *stamp in (*self.record["files"], *self.record["program"])):
            raise NotPersistable("a file has changed")
        self.resolve_objects()
        if stamps_of(self.reals, self.frame.info.code.co_filename) != self.record["files"]:
            raise NotPersistable("a file has changed, or another copy is loaded")  # of another copy of the program, say
        for one, other, answer in self.record["asked"]:
            if issubclass(self._real(one), self._real(other)) is not answer:
                raise NotPersistable("a subclass relation has changed")
        for function, answer in self.record["machine"]:
            if encode(_of_machine(self._real(function))(), refuse) != answer:
                raise NotPersistable("the machine has changed")
        guards = _native.Guards(self.roots(), False, None)
        collected = guards.check(self.state)
        if collected is None:
            raise NotPersistable(guards.explain(self.state) or "a guard fails")
        entry_state = self._entry_state()
        if not entry_state.holds(collected):
            raise NotPersistable("one object is now two, or two are one")
        stored: list[Any] = [tuple(each) if isinstance(each, list) else each for each in self.record["write_policy"]]
        write_policy = WritePolicy(*stored)
        records = Ambient.now().records
        with torch._C._InferenceMode(False), without_default_devices():  # as graphs are captured and compiled
            torch._C._set_grad_enabled(records)
            loaded = compiler.load(self.record["graph"], write_policy.undoing())
        if loaded is None:
            raise NotPersistable("its compiled code is not in the cache")
        run, traced = loaded
        events.count("graphs")
        events.count("captures_loaded")
        run = write_policy.around(run, traced)
        return LoadedCapture(guards, plan_of(self.record["plan"], self._real, run, write_policy.writes), entry_state)

    def resolve_objects(self) -> None:
        """Know every object of the table."""
        self.reals = [ABSENT] * len(self.forms)
        unknown = list(range(len(self.forms)))
        while True:
            unknown, before = self._find(unknown), len(unknown)
            if unknown:
                self._meet()
                unknown = [number for number in unknown if self.reals[number] is ABSENT]
            if unknown and len(unknown) < before:
                continue
            if len(self.remembered) < len(self.record["remembered"]):
                self._ask()
            elif unknown:
                raise NotPersistable(f"a {self.forms[unknown[0]][0]} was not found")
            else:
                return

    def _ask(self) -> None:
        """Call the next function whose answer a cache remembered. All that is known by now holds, so that the program
        comes to this call, with these arguments; what the call has changed is seen when all guards are asked."""
        form, args, named, answer = self.record["remembered"][len(self.remembered)]
        try:
            function = self._real(form)
            positional = tuple(decode(each, self._real) for each in args)
            by_name = {name: decode(each, self._real) for name, each in named}
        except KeyError:
            raise NotPersistable("what a cached function is called with was not found") from None
        self._hold_so_far()
        if type(function) is not WRAPPER:
            raise ValueError(f"{function!r} caches nothing")
        result = _native.suspended(function, *positional, **by_name)
        self._bind(answer, result)
        self.remembered.append(Remembered.of(function, positional, by_name, result))

    def _hold_so_far(self) -> None:
        """Refuse a state in which something that is known by now does not hold."""
        places: list[int] = []
        nodes, count = [], 0
        for root in self.record["roots"]:
            node, count = self._known_part(root, count, places)
            nodes += [node] if node is not None else []
        met = _native.Guards(tuple(nodes), False, None).check(self.state)
        if met is None:
            raise NotPersistable("a guard fails")
        collected = dict(zip(places, met, strict=True))
        for one, other, same in self.record["relations"]:
            if one in collected and other in collected and not alias_holds(collected[one], collected[other], same):
                raise NotPersistable("one object is now two, or two are one")

    def _known_part(self, node: Any, count: int, places: list[int], lost: bool = False) -> tuple[Any, int]:
        """What is known of a node and those below it, and how many are collected up to there; `places` are the numbers
        of those among them that can be."""
        accessor, numbers, below, collected, text = node
        reached = None if lost else self._accessor(accessor)
        if collected:
            places += [count] if reached is not None else []
            count += 1
        children = []
        for child in below:
            part, count = self._known_part(child, count, places, reached is None)
            children += [part] if part is not None else []
        if reached is None:
            return None, count
        checks = [known for number in numbers if (known := self._check(number)) is not None]
        return (reached, tuple(checks), tuple(children), bool(collected), text), count

    def _find(self, unknown: list[int]) -> list[int]:
        """Find what is found under its name, or in another object that is known by now; which are left."""
        for number in unknown:
            if self.reals[number] is ABSENT and (real := find(self.forms[number], self.reals)) is not ABSENT:
                self._know(number, real)
        return [number for number in unknown if self.reals[number] is ABSENT]

    def _meet(self) -> None:
        """Take objects from where guards, as far as they are known, meet them."""
        asked: list[int] = []
        nodes = [node for root in self.record["roots"] if (node := self._probe(root, asked)) is not None]
        met = _native.Guards(tuple(nodes), False, None).check(self.state)
        if met is None:
            raise NotPersistable("a guard fails")
        for number, real in zip(asked, met, strict=True):
            form = self.record["checks"][number]
            self._bind(form[1], type(real) if form[0] == "type" else real)

    def _probe(self, node: Any, asked: list[int]) -> Any:
        """A node with the guards that are known by now, collected where an object is to be met; None if it leads to
        none. Classes are asked at once."""
        accessor, numbers, below, _, text = node
        reached = self._accessor(accessor)
        if reached is None:
            return None
        checks: list[Any] = []
        wanted = None
        for number in numbers:
            known = self._check(number)
            if known is not None:
                checks.append(known)
            elif reached[0] == "value" and self.record["checks"][number][0] == "class has":
                _, name, form = self.record["checks"][number]
                self._bind(form, static_lookup(reached[1], name))
            elif self.record["checks"][number][0] in ("is", "type"):
                wanted = number
        if wanted is not None:  # children are looked at once this is known to be the same object
            asked.append(wanted)
            return (reached, tuple(checks), (), True, text)
        children = tuple(part for child in below if (part := self._probe(child, asked)) is not None)
        return (reached, tuple(checks), children, False, text) if children else None

    def _bind(self, form: Any, real: Any) -> None:
        """The object of this form is `real`, or this is another state than the one that was captured."""
        if type(form) is not list or form[0] != "#":
            self._bind_plain(form, real)
            return
        number = form[1]
        if self.reals[number] is not ABSENT:
            if self.reals[number] is not real:
                raise NotPersistable("one object is now two")
            return
        about = self.forms[number]
        if about[0] == "plain":
            self._bind_plain(about[1], real)
        elif about[0] == "wrapper":
            kind, parts = WRAPPERS[about[1]]
            if type(real) is not kind:
                raise NotPersistable(f"a {about[1]} has changed")
            for part, name in zip(about[2:], parts, strict=True):
                self._bind(part, getattr(real, name))
        else:
            if about[0] == "object":
                self._bind(["#", about[1]], type(real))
            if not is_like(about, real, self.reals):
                raise NotPersistable(f"{' '.join(map(str, about[:3]))} has changed")
        self._know(number, real)

    def _know(self, number: int, real: Any) -> None:
        """What were two objects are two: that one is not the other may have been relied on."""
        self.reals[number] = real
        form = self.forms[number]
        if form[0] == "function":
            self._bind(["#", form[5]], real.__globals__)
        elif form[0] == "member":
            self._bind(form[3], real.value)
        elif form[0] == "module" and len(form) > 2:
            self._bind(["#", form[2]], type(real))
        if form[0] != "plain" and self._numbers.setdefault(id(real), number) != number:
            raise NotPersistable("two objects are now one")

    def _bind_plain(self, form: Any, real: Any) -> None:
        if type(form) is list and form[0] == "t" and type(real) is tuple and len(form) == len(real) + 1:
            for part, each in zip(form[1:], real, strict=True):
                self._bind(part, each)
        elif encode(real, lambda other: ["#"]) != form:
            raise NotPersistable("a value has changed")

    def roots(self) -> tuple[Any, ...]:
        """The guards, once every object is known."""

        def build(node: Any) -> Any:
            accessor, numbers, below, collected, text = node
            checks = [self._check(number) for number in numbers]
            return (self._accessor(accessor), tuple(checks), tuple(map(build, below)), bool(collected), text)

        return tuple(map(build, self.record["roots"]))

    def _accessor(self, number: int) -> Any:
        """An accessor, or None as long as its object is unknown."""
        known = self.accessors.get(number)
        if known is None:
            kind, *parts = self.record["accessors"][number]
            try:
                known = self.accessors[number] = (kind, *[decode(part, self._real) for part in parts])
            except KeyError:
                return None
        return known

    def _check(self, number: int) -> Any:
        """A check, or None as long as an object in it is unknown."""
        known = self.checks.get(number)
        if known is None:
            kind, *parts = self.record["checks"][number]
            try:
                if kind == "remembered":
                    known = ("predicate", self.remembered[parts[0]].guard)
                elif kind == "predicate":
                    known = ("predicate", step_of(parts[0], self._real))
                elif kind == "of class":
                    known = ("of class", step_of(parts[0], self._real), decode(parts[1], self._real))
                else:
                    known = (kind, *[decode(part, self._real) for part in parts])
            except (KeyError, IndexError):
                return None
            self.checks[number] = known
        return known

    def _real(self, form: Any) -> Any:
        real = self.reals[form[1]]
        if real is ABSENT:
            raise KeyError(form[1])
        return real

    def _entry_state(self) -> EntryState:
        function, slots = self.record["frame"]
        frame = FrameRecipe(self.frame.info, 0, self.frame.discard, function, tuple(slots), ())
        relations = tuple((one, other, same) for one, other, same in self.record["relations"])
        return EntryState(relations, (), (frame,))


def _of_machine(function: Any) -> Callable[[], Any]:
    if known_name(function) not in OF_THE_MACHINE:
        raise ValueError(f"{function!r} is not asked")
    asked: Callable[[], Any] = function
    return asked
