"""Running a generated program in plain Python and through smelt, and holding one against the other.

    Program  →  Verdict(failure=None or what differs, graphs, breaks, recompiles, raised)

Both run all calls in a world of their own. After each call everything the program can have touched is pictured: the
result, the arguments, the world's state, what was printed and warned, the exception with its traceback and chain, and
the gradients that a backward from the results leaves.
"""

import contextlib
import io
import linecache
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.base.errors import SmeltWarning
from tests.capture.generated.grammar import Call, Program
from tests.capture.generated.picture import Picture, difference, without_addresses
from tests.capture.programs import error_shape

_WORLD_FILE = Path(__file__).with_name("world.py")
_WORLD = compile(_WORLD_FILE.read_text(), str(_WORLD_FILE), "exec")
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Verdict:
    """How a program fared; `failure` is None where smelt did what Python does."""

    failure: str | None
    graphs: int
    breaks: int
    recompiles: int
    raised: int


def verdict(program: Program) -> Verdict:
    """Run `program` both ways."""
    plain, raised = run(program, lambda function: function)
    smelt.reset()
    mine, _ = run(program, lambda function: smelt.compile(function, backend=program.backend))
    exact = program.backend == "eager"
    failure = None
    for number, (ours, theirs) in enumerate(zip(mine, plain, strict=True)):
        found = difference(ours, theirs, exact=exact)
        if found is not None:
            failure = f"call {number}: {found}"
            break
    counters = smelt.counters
    return Verdict(failure, counters["graphs"], counters["graph_breaks"], counters["recompiles"], raised)


def run(program: Program, wrap: Wrap) -> tuple[list[list[Any]], int]:
    """The pictures of all calls in a new world, and how many of them raised."""
    world: dict[str, Any] = {"__name__": "world"}
    exec(_WORLD, world)
    state = sorted(world["STATE"])
    before = set(world)
    name = f"<program {abs(hash(program.text))}>"
    linecache.cache[name] = (len(program.text), None, program.text.splitlines(keepends=True), name)
    exec(_compiled(program.text, name), world)
    function = wrap(world["program"])
    pictures, raised = [], 0
    for call in program.calls:
        given = arguments(world, call)
        atoms, result, error = _observe(lambda: function(*given), call)  # noqa: B023
        picture = Picture()
        for value in (result, error, given, [world[each] for each in state]):
            picture.see(value)
        for new in sorted({*world} - before - {"program", "__warningregistry__"}):
            picture.see(world[new])
        pictures.append([*atoms, *picture.atoms, *_gradients(result, given)])
        raised += error is not None
    linecache.cache.pop(name)
    return pictures, raised


def _compiled(text: str, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return compile(text, name, "exec")


def arguments(world: dict[str, Any], call: Call) -> tuple[Any, ...]:
    """`x, y, n, s, box, other, log` of a call."""
    shape, dtype = call.shape, getattr(torch, call.dtype)
    x = (torch.arange(float(math.prod(shape)), dtype=dtype).reshape(shape) / 2 - 1).requires_grad_(call.grad[0])
    y = torch.full(shape, 0.5, dtype=dtype).requires_grad_(call.grad[1])
    if call.y != "apart":
        y = {"x": x, "view": x.view(shape), "row": x[:1]}[call.y]
    names = {**world, "x": x.detach().clone() if call.grad[0] else x}
    box = eval(call.box, names)
    other = eval(call.other, {**names, "box": box})
    log = {"new": [], "items": box.items, "shared": world["seen"]}[call.log]
    return x, y, call.n, call.s, box, other, log


def _observe(function: Callable[[], Any], call: Call) -> tuple[list[Any], Any, BaseException | None]:
    """What a call shows of itself (printed text, warnings, exception, modes left behind), its result, its exception."""
    text, error, result = io.StringIO(), None, None
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(text):
        warnings.simplefilter("always")
        with torch.set_grad_enabled(call.grad_mode):
            try:
                result = function()
            except Exception as raised:
                error = raised
            mode = torch.is_grad_enabled()
    said = [(str(each.message), each.lineno) for each in warned if not issubclass(each.category, SmeltWarning)]
    return [text.getvalue(), *said, mode, _named(error_shape(error))], result, error


def _named(shape: Any) -> Any:
    """The shape of an exception with its class named, and without addresses: each world has its own."""
    if isinstance(shape, tuple):
        return tuple(_named(part) for part in shape)
    if isinstance(shape, str):
        return without_addresses(shape)
    return shape.__qualname__ if isinstance(shape, type) else shape


def _gradients(result: Any, given: tuple[Any, ...]) -> list[Any]:
    """What a backward from all tensors of the result does to the leaves among the arguments."""
    parts = result if isinstance(result, tuple | list) else [result]
    tensors = [part for part in parts if isinstance(part, torch.Tensor) and part.requires_grad]
    if not tensors:
        return []
    atoms: list[Any] = []
    try:
        # Retained, because what a later call takes from the world may lead here again, and an engine that finds out
        # half way that something was freed has given some gradients already.
        sum((tensor * 2).sum() for tensor in tensors).backward(retain_graph=True)  # type: ignore[union-attr]
    except RuntimeError as error:
        atoms.append(str(error).split(":")[0])
    atoms += [each.grad.clone() for each in given[:2] if each.is_leaf and each.grad is not None]
    return atoms
