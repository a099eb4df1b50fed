"""A story told twice, in plain Python and through smelt, each in a world of its own, and held against each other.

    Story  →  Verdict(failure=None or what differs, calls, graphs, breaks, recompiles)

After each call its result, its exception, what the world's hooks noted and what the calls printed are compared. Nothing
here asks the world's objects: what a class has been made to say must not matter to who compares.
"""

import contextlib
import io
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.base.errors import SmeltWarning
from tests.capture.generated.picture import without_addresses
from tests.capture.mutations.story import Story

_WORLD_FILE = Path(__file__).with_name("world.py")
_WORLD = compile(_WORLD_FILE.read_text(), str(_WORLD_FILE), "exec")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), range, torch.dtype, torch.device, torch.Size)
_name_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__


@dataclass
class Verdict:
    """How a story ended; `failure` is None where smelt did what Python does."""

    failure: str | None
    calls: int
    raised: int
    graphs: int
    breaks: int
    recompiles: int


def verdict(story: Story) -> Verdict:
    """Tell `story` both ways."""
    plain, raised = run(story, lambda function: function)
    smelt.reset()
    mine, _ = run(story, lambda function: smelt.compile(function, backend=story.backend))
    failure = None
    for number, (ours, theirs) in enumerate(zip(mine, plain, strict=True)):
        if ours != theirs:
            failure = f"call {number}: {ours}\n    where Python has {theirs}"
            break
    counters = smelt.counters
    return Verdict(
        failure, len(plain), raised, counters["graphs"], counters["graph_breaks"], counters["recompiles"]
    )


def run(story: Story, wrap: Callable[[Any], Any]) -> tuple[list[Any], int]:
    """What each call showed, and how many raised."""
    world = make_world()
    shown, raised = [], 0
    with torch_as_it_is(), torch.random.fork_rng():
        exec(story.text, world)
        function = wrap(world["program"])
        for step in story.steps:
            if step:
                with contextlib.suppress(Exception):
                    exec(step, world)
                continue
            atoms, error = _call(function)
            shown.append([atoms, pictured(world["seen"])])
            raised += error
    return shown, raised


def make_world() -> dict[str, Any]:
    """A new one, with builtins of its own."""
    builtins = dict(__builtins__) if isinstance(__builtins__, dict) else dict(vars(__builtins__))
    world: dict[str, Any] = {"__name__": "world", "__builtins__": builtins}
    exec(_WORLD, world)
    return world


def _call(function: Callable[..., Any]) -> tuple[list[Any], bool]:
    text, result = io.StringIO(), None
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(text):
        warnings.simplefilter("always")
        x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float32, device="cpu")
        error = ""
        try:
            result = function(x)
        except Exception as caught:
            error = f"{_name_of(type(caught))}: {caught}"
    said = [str(each.message) for each in warned if not issubclass(each.category, SmeltWarning)]
    return [text.getvalue(), said, without_addresses(error), pictured(result)], bool(error)


def pictured(value: Any, depth: int = 4) -> Any:
    """A value as plain data; of an object of the world no more than the name of its class."""
    kind = type(value)
    if kind in _PLAIN:
        return (kind.__name__, without_addresses(str(value)))
    if isinstance(value, torch.Tensor) and kind in (torch.Tensor, torch.nn.Parameter):
        data = () if value.is_meta else value.detach().tolist()
        return (kind.__name__, str(value.dtype), value.requires_grad, str(value.device), repr(data))
    if kind in (list, tuple, deque) and depth:
        return (kind.__name__, [pictured(each, depth - 1) for each in value])
    if kind in (dict, OrderedDict, defaultdict) and depth:
        return (kind.__name__, [(pictured(key, 0), pictured(each, depth - 1)) for key, each in value.items()])
    if kind in (set, frozenset):
        return (kind.__name__, sorted(str(pictured(each, 0)) for each in value))
    return ("a", _name_of(kind), _name_of(value) if issubclass(kind, type) else "")


@contextlib.contextmanager
def torch_as_it_is() -> Iterator[None]:
    """Settings of the process are as they were when the story is over."""
    dtype, threads, grad = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    lower = torch.get_autocast_dtype("cpu")
    hooks = torch.nn.modules.module._global_forward_hooks
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(False)
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", lower)
        hooks.clear()
