"""One backend with one model in a process of its own: does its first step, then steps when asked to.

    python -m benchmarks.worker MODEL MODE DTYPE DEVICE BACKEND [RESULTS]

It answers in lines of JSON: first {"seconds": the first step, "processor": the same in processor time, "saved": bytes,
"breaks": graph breaks}, then for each line it reads, a number of steps, {"seconds": one of those, "processor": the same
in processor time}, which is that of compilers in other processes, too. The first step is timed from just before the
model is handed to the compiler (torch, and smelt for smelt, imported; nothing else) to its end: whatever a backend
loads or compiles by then is part of it. RESULTS is a file for the output and the gradients of a step; "exact" as
backend is eager in float64. In mode "step" (`train_step.py`) the first two steps count as the first: the second finds
the optimizer's state, so that it is recaptured. On a GPU steps end when the device is done, and the first answer has
"peak", too: the most bytes its allocator had handed out at one time of a later step.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.harness import Key, compiled_by
from benchmarks.measure import saved_bytes
from benchmarks.models import Case, model_named
from benchmarks.train_step import stepped, whole_step


def _training(case: Case, model: Callable[..., Any]) -> Callable[[], object]:
    leaves = [*case.module.parameters(), *(x for x in case.inputs if x.requires_grad)]

    def step() -> object:
        for leaf in leaves:
            leaf.grad = None
        loss = case.loss(case.call(model))
        loss.backward()
        return loss

    return step


def _inferring(case: Case, model: Callable[..., Any]) -> Callable[[], object]:
    def step() -> object:
        with torch.no_grad():
            return case.call(model)

    return step


def _processor_time() -> float:
    """Seconds of the processor that this process has used, and those that it started and that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Every tensor of an output, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def _results(case: Case, model: Callable[..., Any], mode: str) -> list[torch.Tensor]:
    if mode == "infer":
        with torch.no_grad():
            return list(tensors_in(case.call(model)))
    leaves = [*case.module.parameters(), *(x for x in case.inputs if x.requires_grad)]
    for leaf in leaves:
        leaf.grad = None
    output = case.call(model)
    case.loss(output).backward()
    return [*(x.detach() for x in tensors_in(output)), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _found(case: Case, loss: object) -> list[torch.Tensor]:
    """The loss of a whole step and its gradients, which live until the next step."""
    grads = [p.grad for p in case.module.parameters() if p.grad is not None]
    return [x.detach().clone() for x in (*tensors_in(loss), *grads)]


def _peak(step: Callable[[], object]) -> int:
    """Bytes that a step of a GPU has in use at its peak, the model's own included."""
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def serve(key: Key, backend: str, results: str | None, answer: Callable[[Any], None]) -> None:
    """The whole life of a worker."""
    if backend == "smelt":
        import smelt  # before the clock starts, as a user's program has it
    name, mode, device = key.model, key.mode, key.device
    wanted = torch.float64 if backend == "exact" else getattr(torch, key.dtype)
    case = stepped(name, wanted, device) if mode == "step" else model_named(name, device).build_on(device, wanted)
    case = case.inferring() if mode == "infer" else case
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    wait()
    began, busy = time.perf_counter(), _processor_time()
    if mode == "step":
        step: Callable[[], object] = whole_step(case, backend)
        found = _found(case, step()) if results else []
        step()
    else:
        model = compiled_by(backend, case.module)
        step = (_training if mode == "train" else _inferring)(case, model)
        step()
    wait()
    first: dict[str, Any] = {"seconds": time.perf_counter() - began, "processor": _processor_time() - busy}
    if device != "cpu":
        first["peak"] = _peak(step)
    if backend == "smelt":
        first["breaks"] = smelt.counters["graph_breaks"]
    if mode == "train":
        first["saved"] = saved_bytes(case.loss(case.call(model)), case.module.parameters())
    if results:
        torch.save(found if mode == "step" else _results(case, model, mode), results)
    answer(first)
    for line in sys.stdin:
        count, began, busy = int(line), time.perf_counter(), time.process_time()
        for _ in range(count):
            step()
        wait()
        seconds, processor = time.perf_counter() - began, time.process_time() - busy
        answer({"seconds": seconds / count, "processor": processor / count})


def main(arguments: Sequence[str]) -> None:
    name, mode, dtype, device, backend = arguments[:5]
    output, sys.stdout = sys.stdout, sys.stderr  # libraries print what they like

    def answer(value: Any) -> None:
        print(json.dumps(value), file=output, flush=True)

    serve(Key(name, mode, dtype, device), backend, arguments[5] if len(arguments) > 5 else None, answer)


if __name__ == "__main__":
    main(sys.argv[1:])
