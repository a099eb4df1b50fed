"""The guard tree of one captured graph: its roots, the process state it relies on, and its text.

GuardTree  →  (roots for `_native.Guards`, the collected sources in the order their values will come)
"""

import abc
import itertools
import types
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch

from smelt.base.torch_originals import ASKED_OF_TENSORS, ASKED_OF_TORCH
from smelt.capture.model.source import Source, plain_text
from smelt.capture.model.static import ABSENT, class_dict_of, is_a, is_heap_type, mro_of, qualname_of, static_lookup
from smelt.ir.nodes.ambient import attention_kernels, autocast_nesting, autocast_settings, default_devices
from smelt.meta.devices import current_index
from smelt.meta.replaced_operators import replaced_operators

if TYPE_CHECKING:
    from smelt._native import GuardNode, SizeFacts


# Functions in C, as each is called once per call of anything compiled.
PROCESS_STATE: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("grad mode", torch._C.is_grad_enabled),
    ("inference mode", torch._C.is_inference_mode_enabled),
    ("autocast", torch._C._is_any_autocast_enabled),
    ("default dtype", torch._C.get_default_dtype),
    ("deterministic algorithms", torch._C._get_deterministic_algorithms),
    ("torch function modes", torch._C._len_torch_function_stack),
    ("torch dispatch modes", torch._C._len_torch_dispatch_stack),
    ("JIT tracing", torch._C._is_tracing),
)

_NAMED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


class GuardTree:
    """Every root source of one capture, each made once."""

    def __init__(self) -> None:
        self._slots: dict[int, Source] = {}
        self._fixed: dict[int, Source] = {}
        self._classes: dict[type, dict[str, Any]] = {}
        self.made_classes: dict[int, Any] = {}  # by their ids, `MadeClass`es: stand-ins, of which nothing is relied on
        self._state = Source(None, ("value", None), "process")
        self.relations: list[tuple[Source, Source, bool | None]] = []  # pairs of collected tensors, see `EntryState`
        self.why_not_persist = ""  # what was looked at that is another in another process, and that no guard asks for
        self.asked: dict[tuple[int, int], tuple[type, type, bool]] = {}  # see `is_subclass`
        self.machine: dict[Callable[[], Any], Any] = {}  # see `rely_on_machine`
        self.relied_on: set[Any] = set()  # functions of PyTorch, see `reliance`
        self.remembered: dict[Any, Any] = {}  # calls of cached functions, in their order
        self.inference_mode = torch.is_inference_mode_enabled()
        self.nesting = autocast_nesting()
        self._settings = autocast_settings()
        self.attention = attention_kernels()
        self.hides_backend_settings = False  # whether captured code has set those that it would read
        for text, function in PROCESS_STATE:
            self.process(text, function, function())
        self._state.child(("value", replaced_operators), "replaced operators").check(("replaced", replaced_operators()))
        if torch._C._is_any_autocast_enabled():
            self.rely_on_autocast()

        if torch._C._len_torch_function_stack():
            self.process("default devices", default_devices, default_devices())

    def rely_on_order(self, items: Collection[Any]) -> None:
        """The order of a set's items matters, by hashes that are others in another process but for numbers'."""
        if len(items) > 1 and not all(type(item) in (bool, int, float) for item in items):
            self.why_not_persist = "the order of a set"

    def has_base(self, kind: type, wanted: type) -> bool:
        """Whether one class is another, or has it among its bases."""
        answer = any(base is wanted for base in mro_of(kind))
        if id(kind) in self.made_classes:
            for base in kind.__bases__:
                self.has_base(base, wanted)
            return answer
        if kind is not wanted and is_heap_type(kind):
            self.fixed(kind, qualname_of(kind)).check(("subclass", wanted, answer))
        return answer

    def is_registered(self, kind: type, wanted: type) -> bool:
        """Whether an abstract class takes another for its subclass: by its bases, its register, its hook. A yes is for
        good: it remembers that. Another process is asked once."""
        answer = abc.ABCMeta.__subclasscheck__(wanted, kind)  # type: ignore[arg-type]
        if id(kind) in self.made_classes:
            for base in kind.__bases__:
                self.is_registered(base, wanted)
            return answer
        self.asked[id(kind), id(wanted)] = kind, wanted, answer
        if not answer:
            self.fixed(kind, qualname_of(kind)).check(("unregistered", wanted))
        return answer

    def metaclass(self, kind: type) -> type:
        """The class of a class: one that Python code has made can be exchanged for another."""
        if is_heap_type(type(kind)):
            self.fixed(kind, qualname_of(kind)).check(("type", type(kind)))
        return type(kind)

    def metaclass_attribute(self, kind: type, name: str) -> Any:
        """What Python finds under the name of a special method when an operator is used on a class."""
        return self.class_attribute(self.metaclass(kind), name)

    def of_class(self, kind: type, function: Callable[[type], Any]) -> Any:
        """What a function of smelt's says of a class; all it may look at is what look-ups in the class find."""
        answer = function(kind)
        if id(kind) in self.made_classes:
            for base in kind.__bases__:
                self.of_class(base, function)
        elif is_heap_type(kind):
            self.fixed(kind, qualname_of(kind)).check(("of class", function, answer))
        return answer

    def next_attribute(self, kind: type, after: type, name: str) -> Any:
        """What the bases of `kind` that come after a class hold under the name, as `super()` finds it."""
        is_made, member = id(kind) in self.made_classes, ABSENT
        later = itertools.dropwhile(lambda base: base is not after, mro_of(kind))
        for base in itertools.islice(later, 1, None):
            if is_made and id(base) not in self.made_classes:
                self.class_attribute(base, name)
            if name in class_dict_of(base):
                member = class_dict_of(base)[name]
                break
        if is_heap_type(kind) and not is_made:
            check = ("next lacks", name, after) if member is ABSENT else ("next has", name, after, member)
            self.fixed(kind, qualname_of(kind)).check(check)
        return member

    def class_name(self, kind: type, name: str = "__name__") -> str:
        """`__name__` or `__qualname__` of a class, as `type` has it."""
        text: str = type.__dict__[name].__get__(kind)
        if is_heap_type(kind) and id(kind) not in self.made_classes:
            self.metaclass(kind)
            self.fixed(kind, qualname_of(kind)).attribute(name).check(("equals", text))
        return text

    def rely_on_type(self, real: Any) -> type:
        """The class of an object that is meant itself: it may be given another."""
        if is_heap_type(type(real)):
            self.fixed(real, qualname_of(type(real))).check(("type", type(real)))
        return type(real)

    def rely_on_machine(self, function: Callable[[], Any], answer: Any) -> None:
        """What a function says of the machine, a value without a source: another process asks it once."""
        if answer is None:
            self.why_not_persist = f"what {function.__qualname__} says of the machine"
        elif function is torch.get_num_threads:
            self.process("number of threads", function, answer.value)
        else:
            self.machine[function] = answer.value

    def rely_on_current_device(self, kind: str, index: int) -> None:
        """A device named without a number was taken for this one. Where there is one of the kind, nothing is asked."""
        asked = current_index(kind)
        if asked is not None:
            self.process(f"current {kind} device", asked, index)
        elif kind == "cuda":
            self.machine[torch.cuda.device_count] = torch.cuda.device_count()
        else:
            self.why_not_persist = f"the current {kind} device"

    def process(self, text: str, function: Callable[[], Any], answer: Any) -> None:
        """The process was in a state in which `function` answers so."""
        self._state.child(("value", function), text).check(("calls", function, answer))

    def rely_on_autocast(self) -> None:
        """What autocast does matters, even where it is off: a block that ends puts back what it found."""
        self.process("autocast settings", autocast_settings, self._settings)

    def rely_on_attention(self) -> None:
        """Which kernels attention may choose from matters: a block that ends puts back what it found."""
        self.process("attention kernels", attention_kernels, self.attention)

    def slot(self, index: int, text: str) -> Source:
        """What the state holds at position `index` of its flat list of values."""
        if index not in self._slots:
            self._slots[index] = Source(None, ("slot", index), text)
        return self._slots[index]

    def roots(self) -> list[Source]:
        """All that sources begin with."""
        return [*self.slots(), *self._fixed.values()]

    def slots(self) -> list[Source]:
        """The slots that were looked at, in order."""
        return [self._slots[index] for index in sorted(self._slots)]

    def fixed(self, value: object, text: str) -> Source:
        """A root that is one given object, however it was first reached."""
        if id(value) not in self._fixed:
            self._fixed[id(value)] = Source(None, ("value", value), text)
        return self._fixed[id(value)]

    def class_attribute(self, kind: type, name: str) -> Any:
        """`static_lookup`, remembered: the entry is void once the class answers otherwise."""
        if not is_heap_type(kind):
            return static_lookup(kind, name)
        if id(kind) in self.made_classes:
            for base in kind.__bases__:
                self.class_attribute(base, name)
            return static_lookup(kind, name)
        seen = self._classes.setdefault(kind, {})
        if name not in seen:
            seen[name] = static_lookup(kind, name)
        return seen[name]

    def _class_checks(self, kind: type) -> None:
        root = self.fixed(kind, qualname_of(kind))
        for name, member in self._classes[kind].items():
            root.check(("class lacks", name) if member is ABSENT else ("class has", name, member))

    def build(self) -> "tuple[tuple[GuardNode, ...], list[Source]]":
        """The roots as plain tuples, slots first, and the sources whose values are collected, in order."""
        for kind in self._classes:
            self._class_checks(kind)
        self._classes = {}
        collected: list[Source] = []
        slots = self.slots()
        nodes = [root.build(collected) for root in (self._state, *slots, *self._fixed.values(), *_underneath())]
        return tuple(node for node in nodes if node is not None), collected

    def release(self) -> None:
        """Let go of the program's objects now: sources and their values hold each other, and the collector is slow.

        Python drops an object, and closes a generator, as soon as nobody can reach it; so must the first call.
        """
        self.made_classes = {}
        pending = [self._state, *self._slots.values(), *self._fixed.values()]
        while pending:
            source = pending.pop()
            pending += source.children.values()
            source.children, source.value, source.parent = {}, None, None


UNDERNEATH = "PyTorch, as smelt uses it"


def _underneath() -> tuple[Source, Source]:
    """What smelt itself asks of PyTorch, which no program has replaced; people are not shown it."""
    tensors = Source(None, ("value", torch.Tensor), UNDERNEATH)
    functions = Source(None, ("value", torch.__dict__), UNDERNEATH)
    for name in ASKED_OF_TENSORS:
        member = static_lookup(torch.Tensor, name)
        if member is not ABSENT:  # in this version of PyTorch
            tensors.check(("class has", name, member))
    for name in ASKED_OF_TORCH:
        if name in torch.__dict__:
            functions.child(("key", name), name).check(("is", torch.__dict__[name]))
    return tensors, functions


def format_guards(roots: "tuple[GuardNode, ...]", sizes: "SizeFacts | None" = None) -> str:
    """Guards as text: one line per check, in the order they run."""
    lines: list[str] = []
    pending = [root for root in reversed(roots) if root[4] != UNDERNEATH]
    while pending:
        _, checks, children, collected, text = pending.pop()
        lines += [f"  {text}: {_check_text(check)}" for check in checks]
        if collected:
            lines.append(f"  {text}: collected")
        pending.extend(reversed(children))
    lines += [f"  {text}" for _, text in (sizes[2] if sizes is not None else ())]
    return "guards:\n" + "\n".join(lines)


def _check_text(check: tuple[Any, ...]) -> str:
    kind, *rest = check
    return _CHECK_TEXTS[kind](*rest) if kind in _CHECK_TEXTS else " ".join([kind, *map(plain_text, rest)])


def _tensor_text(cls: type, dtype: Any, device: Any, shape: Any, stride: Any, requires_grad: bool) -> str:
    dtype = str(dtype).removeprefix("torch.")
    gradient = ", requires grad" if requires_grad else ""
    shape, stride = ([size if size is not None else "any" for size in sizes] for sizes in (shape, stride))
    layout = f"[{', '.join(map(str, shape))}] stride [{', '.join(map(str, stride))}]"
    return f"{cls.__name__} {dtype}{layout} on {device}{gradient}"


def _object_text(value: object) -> str:
    if is_a(value, _NAMED):
        return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", None))
    return repr(value) if isinstance(value, str | int | float | None) else f"one {type(value).__name__}"


_CHECK_TEXTS: dict[str, Callable[..., str]] = {
    "type": lambda cls: f"type is {cls.__qualname__}",
    "is": lambda real: f"is {_object_text(real)}",
    "tensor": _tensor_text,
    "calls": lambda function, answer: f"== {plain_text(answer)}",
    "replaced": lambda names: f"== {{{', '.join(sorted(names))}}}",
    "class has": lambda name, member: f"{name} is {_object_text(member)}",
    "class lacks": lambda name: f"has no {name}",
    "method": lambda name: f"{name} is a method of its class",
    "predicate": lambda function: "unchanged",
    "subclass": lambda base, answer: f"is {'a' if answer else 'no'} subclass of {_object_text(base)}",
    "unregistered": lambda base: f"is not registered with {_object_text(base)}",
    "next has": lambda name, cls, member: f"super().{name} after {_object_text(cls)} is {_object_text(member)}",
    "next lacks": lambda name, cls: f"super() after {_object_text(cls)} has no {name}",
    "of class": lambda function, answer: f"{_object_text(function)} unchanged",
}
"""By the kind of a check; any other is its kind and what it expects."""
