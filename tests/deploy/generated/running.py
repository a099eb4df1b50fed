"""A program exported, run by the C runtime, and held against eager.

    outcome_of(program)   →   Outcome: calls made, why it was refused, or what differs

A refusal at export is an answer, if it is a `SmeltError`; a call that stops where eager goes on is a failure. Eager is
run in float64 too: where its results differ from those in float32 by more than rounding, a branch was decided by
rounding, or values were too large to compare, and the call is left out.
"""

import json
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.base.errors import SmeltError
from tests.deploy.generated.grammar import COLUMNS, Program

NEAR, LARGE = 1e-4, 1e4


@dataclass(frozen=True)
class Outcome:
    """What became of a program: calls that were compared, why export refused it, or what differs from eager."""

    calls: int = 0
    refused: str | None = None
    failure: str | None = None
    in_webassembly: int = 0


class Keeping(torch.nn.Module):
    """A module whose forward is the program, with buffers for it to write."""

    def __init__(self, forward: Callable[..., Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("kept", torch.arange(float(COLUMNS)).to(dtype))
        self.register_buffer("total", torch.ones((), dtype=dtype))
        self.forward = forward.__get__(self)  # type: ignore[method-assign]


def callable_of(program: Program, double: bool = False) -> Callable[..., Any]:
    """The program as a function, or a module with state of its own."""
    text = program.text.replace(".float()", ".double()") if double else program.text
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<program {program.seed}>", "exec"), scope)
    function: Callable[..., Any] = scope["program"]
    if program.keeps:
        return Keeping(function, torch.float64 if double else torch.float32)
    return function


def _called(function: Callable[..., Any], given: dict[str, Any], double: bool = False) -> Any:
    """What a call returns, or the exception that it raises."""
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    try:
        with torch.no_grad():
            return function(*(each.clone() if isinstance(each, torch.Tensor) else each for each in given.values()))
    except (ValueError, IndexError, RuntimeError, ZeroDivisionError, OverflowError) as error:
        return error
    finally:
        torch.set_default_dtype(torch.float32)


def outcome_of(program: Program, webassembly: bool = False) -> Outcome:
    """Export a program and compare its calls."""
    eager, exact, exported = callable_of(program), callable_of(program, double=True), callable_of(program)
    calls = list(program.calls())
    dynamic = {}
    if program.rows:
        dynamic = {name: {0: smelt.Dimension("rows", 1, 4096)} for name in ("x", "y") if name in program.arguments}
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            artifact = smelt.export(exported, tuple(calls[0].values()), dynamic=dynamic)
    except SmeltError as refused:
        return Outcome(refused=f"{refused.code} {refused.message}")
    fixed = {name for name in program.arguments if any(f"{name} is fixed" in str(each.message) for each in told)}
    least = 2 if any("rows is 2 or more" in str(each.message) for each in told) else 1
    some_sizes = any("for some sizes only" in str(each.message) for each in told)
    compared, kept = 0, []
    for number, (given, wide) in enumerate(zip(calls, program.calls(double=True), strict=True)):
        if any(given[name] != calls[0][name] for name in fixed) or (program.rows and given["x"].shape[0] < least):
            continue
        theirs, truth = _called(eager, given), _called(exact, wide, double=True)
        try:
            ours = artifact(*given.values())
        except SmeltError as error:
            ours = error
            if some_sizes and error.code == "SM052":
                break  # as was said
        states = _states(eager, theirs, exact, artifact)
        found = _difference(ours, theirs, truth, states)
        if found == _UNSURE:
            break  # and what is kept is another from here on
        if found is not None:
            return Outcome(compared, failure=f"call {number} of {_shown(given)}: {found}")
        if program.keeps and isinstance(theirs, Exception):
            break  # eager has written something, and a failed call of an artifact nothing
        compared += 1
        if isinstance(theirs, tuple):
            kept.append((given, theirs))
    ran = 0
    if webassembly and not program.keeps and all(isinstance(each, torch.Tensor) for each in calls[0].values()):
        ran, failure = _in_webassembly(artifact, kept)
        if failure is not None:
            return Outcome(compared, failure=f"in WebAssembly, {failure}")
    return Outcome(compared, in_webassembly=ran)


_UNSURE = "unsure"
State = list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]


def _states(eager: Any, theirs: Any, exact: Any, artifact: Any) -> State:
    """What modules keep after a call: ours, eager's and the exact one."""
    if not isinstance(eager, Keeping) or isinstance(theirs, Exception):
        return []
    ours = artifact.state_dict()
    both = zip(eager.named_buffers(), exact.named_buffers(), strict=True)
    return [(name, ours[name], each, wide) for (name, each), (_, wide) in both if name in ours]


def _difference(ours: Any, theirs: Any, truth: Any, states: State) -> str | None:
    if type(theirs) is not type(truth):
        return _UNSURE
    if isinstance(theirs, Exception):
        if isinstance(ours, Exception):
            return None
        return f"returns, and eager raises {theirs!r}"
    pairs = [("result", *each) for each in zip(theirs, truth, strict=True)]
    for _, mine, wide in (*pairs, *(("state", each, wide) for _, _, each, wide in states)):
        if not _agree(mine, wide):
            return _UNSURE
    if isinstance(ours, Exception):
        return f"stops: {ours}"
    for place, (mine, eager, exact) in enumerate(zip(ours, theirs, truth, strict=True)):
        if (found := _compared(mine, eager, exact)) is not None:
            return f"result {place}: {found}"
    for name, mine, eager, exact in states:
        if (found := _compared(mine, eager, exact)) is not None:
            return f"state {name}: {found}"
    return None


def _tensor(value: Any) -> torch.Tensor:
    return value.double() if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)


def _agree(eager: Any, exact: Any) -> bool:
    """Whether eager computes the same in float32 and in float64, but for rounding."""
    one, other = _tensor(eager), _tensor(exact)
    if one.shape != other.shape or not torch.isfinite(other).all() or float(other.abs().max()) > LARGE:
        return False
    return bool(((one - other).abs() <= NEAR * other.abs().max().clamp(min=1)).all())


def _compared(ours: Any, eager: Any, exact: Any) -> str | None:
    if isinstance(ours, torch.Tensor) is not isinstance(eager, torch.Tensor):
        return f"{type(ours).__name__} instead of {type(eager).__name__}"
    if not isinstance(eager, torch.Tensor) and type(ours) is not type(eager):
        return f"{ours!r} instead of {eager!r}"
    if isinstance(eager, torch.Tensor) and (ours.dtype, ours.shape) != (eager.dtype, eager.shape):
        return f"{ours.dtype} {tuple(ours.shape)} instead of {eager.dtype} {tuple(eager.shape)}"
    error, allowed = (_tensor(each) - _tensor(exact) for each in (ours, eager))
    bound = 8 * allowed.abs().max() + NEAR * _tensor(exact).abs().max().clamp(min=1)
    if bool((error.abs() > bound).any()) or not torch.isfinite(_tensor(ours)).all():
        return f"{ours} instead of {eager}"
    return None


def _shown(given: dict[str, Any]) -> str:
    shown = {name: list(each.shape) if isinstance(each, torch.Tensor) else each for name, each in given.items()}
    return ", ".join(f"{name}={each}" for name, each in shown.items())


SCRIPT = """
import fs from "node:fs";
import { load } from "./model.mjs";
const session = await load();
const found = JSON.parse(fs.readFileSync("given.json")).map((call) => {
  const inputs = call.map(([name, shape, data]) => [name, { data: Float32Array.from(data), shape }]);
  const outputs = Object.values(session.run(Object.fromEntries(inputs)));
  return outputs.map(({ data, shape }) => [shape, Array.from(data, Number)]);
});
console.log(JSON.stringify(found));
"""


def _in_webassembly(artifact: Any, calls: list[tuple[dict[str, Any], Any]]) -> tuple[int, str | None]:
    """Calls made under node, and the first that differs from eager."""
    node = shutil.which("node")
    if node is None or not calls:
        return 0, None
    with tempfile.TemporaryDirectory() as folder:
        artifact.save_static(Path(folder) / "model", "wasm32")
        Path(folder, "main.mjs").write_text(SCRIPT)
        inputs = [
            [[name, list(each.shape), each.flatten().tolist()] for name, each in given.items()] for given, _ in calls
        ]
        Path(folder, "given.json").write_text(json.dumps(inputs))
        done = subprocess.run([node, "main.mjs"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return 0, f"it stops: {done.stderr[-500:]}"
    for number, (found, (given, theirs)) in enumerate(zip(json.loads(done.stdout), calls, strict=True)):
        for (shape, data), eager in _same_form(found, theirs):
            ours = torch.tensor(data, dtype=torch.float64).reshape(shape)
            if shape != list(eager.shape) or not torch.allclose(ours, eager.double(), rtol=NEAR, atol=10 * NEAR):
                return number, f"call {number} of {_shown(given)}: {ours} instead of {eager}"
    return len(calls), None


def _same_form(found: list[Any], theirs: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """Results under node with those of eager; numbers that are known while exporting are not among them."""
    tensors = [each for each in theirs if isinstance(each, torch.Tensor)]
    yield from zip(found[: len(tensors)], tensors, strict=True)
