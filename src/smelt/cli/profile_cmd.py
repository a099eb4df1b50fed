"""`smelt profile`: how long each kernel of an artifact takes, measured by the C runtime, without torch."""

import argparse
import ctypes
import json
import math
import statistics
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from smelt.base.errors import SmeltError
from smelt.cli.example_spec import BadTarget
from smelt.deploy.runtime import Model, RegisterInfo, Session, TensorAt
from smelt.ir.table.dtypes import DTYPES

WARMING_CALLS = 3
_HALF = {"float16": "<e", "float32": "<f", "float64": "<d"}


class Launch(NamedTuple):
    """A kernel at work, with times in nanoseconds."""

    kernel: str
    begin: int
    end: int


class Call(NamedTuple):
    """A call that was measured, and its kernels in order."""

    begin: int
    end: int
    launches: tuple[Launch, ...]


def add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="model.smelt")
    parser.add_argument("--weights", help="the file of weights of an artifact that has none itself")
    parser.add_argument("--entry", help="the entry point (default: the first)")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="a dynamic size (default: the least); may be repeated",
    )
    parser.add_argument("--calls", type=int, default=20, help="how many calls are measured (default: 20)")
    parser.add_argument("--threads", type=int, default=0, help="threads of a call (default: one per processor)")
    parser.add_argument(
        "--out", metavar="FILE", help="write a trace, to be opened in ui.perfetto.dev or chrome://tracing"
    )


def do_profile(args: argparse.Namespace) -> int:
    if args.calls < 1:
        raise BadTarget(f"--calls is 1 or more, not {args.calls}")
    model = Model(args.file, weights=args.weights)
    names = [entry.name for entry in model.entries]
    if args.entry is not None and args.entry not in names:
        raise BadTarget(f"there is no entry point {args.entry!r}; choose from {', '.join(names)}")
    number = 0 if args.entry is None else names.index(args.entry)
    session = Session(model, args.threads)
    session.choose(number)
    sizes = _sizes(args.size, model.entries[number].inputs)
    memory = [_memory(info, sizes) for info in model.entries[number].inputs]
    calls, alone = measure(session, [tensor for tensor, _ in memory], args.calls)
    print(f"{model.name}, {names[number]} for {model.target}: {alone / 1e3:.1f} us a call, median of {args.calls}")
    print("\n".join(table(calls)))
    if args.out:
        Path(args.out).write_text(json.dumps(trace(calls, names[number])))
        print(f"trace of {args.calls} calls: {args.out}")
    return 0


def measure(session: Session, inputs: Sequence[TensorAt], count: int) -> tuple[list[Call], float]:
    """Calls with each kernel measured, and the median of as many calls alone, in nanoseconds. State is as before."""
    launches: list[Launch] = []
    calls: list[Call] = []
    alone: list[int] = []
    for number in range(-WARMING_CALLS, count):
        for is_measured in (False, True):
            session.reset()
            session.profile((lambda *launch: launches.append(Launch(*launch))) if is_measured else None)
            launches.clear()
            begin = time.time_ns()
            session.run(inputs)
            end = time.time_ns()
            if number >= 0 and is_measured:
                calls.append(Call(begin, end, tuple(launches)))
            elif number >= 0:
                alone.append(end - begin)
    session.reset()
    return calls, statistics.median(alone)


def table(calls: Sequence[Call]) -> list[str]:
    """Kernels, those that take longest first: launches and time of a call, and the share of all kernels."""
    times: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    for call in calls:
        here: dict[str, int] = {}
        for launch in call.launches:
            here[launch.kernel] = here.get(launch.kernel, 0) + launch.end - launch.begin
            counts[launch.kernel] = counts.get(launch.kernel, 0) + 1
        for kernel, nanoseconds in here.items():
            times.setdefault(kernel, []).append(nanoseconds)
    medians = {kernel: statistics.median(each) for kernel, each in times.items()}
    total = sum(medians.values()) or 1
    lines = [f"{'us':>10}  {'share':>6}  {'launches':>8}  kernel"]
    for kernel, median in sorted(medians.items(), key=lambda item: -item[1]):
        launches = counts[kernel] / len(calls)
        lines.append(f"{median / 1e3:10.1f}  {median / total:6.1%}  {launches:8.4g}  {kernel}")
    return [*lines, f"{total / 1e3:10.1f}  {1:6.1%}  {sum(counts.values()) / len(calls):8.4g}  all kernels"]


def trace(calls: Sequence[Call], name: str) -> dict[str, object]:
    """The calls in the format of Chrome's traces; times are microseconds from the first one on."""
    first = calls[0].begin

    def event(what: str, begin: int, end: int, kind: str) -> dict[str, object]:
        return {
            "name": what, "cat": kind, "ph": "X", "pid": 1, "tid": 1, "ts": (begin - first) / 1e3,
            "dur": (end - begin) / 1e3,
        }  # fmt: skip

    events = []
    for call in calls:
        events.append(event(name, call.begin, call.end, "call"))
        events += [event(launch.kernel, launch.begin, launch.end, "kernel") for launch in call.launches]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _sizes(texts: Sequence[str], inputs: Sequence[RegisterInfo]) -> dict[str, int]:
    named = {name for info in inputs for _, _, name in info.dims if name is not None}
    sizes = {}
    for text in texts:
        name, _, size = text.partition("=")
        if name not in named or not size.isdigit():
            raise BadTarget(f"{text!r} is no size; write NAME=SIZE with a name of {', '.join(sorted(named)) or 'none'}")
        sizes[name] = int(size)
    return sizes


def _memory(info: RegisterInfo, sizes: Mapping[str, int]) -> tuple[TensorAt, object]:
    """An input, and its memory: floating-point numbers are 0.5, others 0."""
    if info.dtype is None:
        raise SmeltError("SM052", f"input {info.name} has no dtype")
    shape = tuple(sizes.get(name or "", max(low, 1) if high else low) for low, high, name in info.dims)
    count = math.prod(shape)
    if info.dtype in _HALF:
        data = struct.pack(_HALF[info.dtype], 0.5) * count
    else:
        data = (b"\x00\x3f" if info.dtype == "bfloat16" else bytes(DTYPES[info.dtype])) * count
    memory = ctypes.create_string_buffer(data, len(data) or 1)
    return TensorAt(info.dtype, shape, None, ctypes.addressof(memory)), memory
