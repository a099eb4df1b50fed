"""A training step (zero_grad, forward, backward, clipping, AdamW) in each backend's best way, and what memory it takes.

    python -m benchmarks.train_step MODEL DTYPE BACKEND           bytes in use at the peak of its first three steps
    python -m benchmarks.train_step MODEL DTYPE BACKEND let-go    the same without clipping, `zero_grad` coming last:
                                                                  gradients are not kept

smelt compiles the whole step as one graph. torch.compile is taken at its best: a compiled model with a
compiled `opt.step()`. Time is measured by `make bench ARGS="--modes step"`. Memory is the most that PyTorch's allocator
had handed out at one time, in a process of its own: what the step works with, gradients, the optimizer's state and
planned memory, but not the parameters.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.memory import allocated_at_peak
from benchmarks.models import Case, model_named


def stepped(name: str, dtype: torch.dtype, device: str = "cpu") -> Case:
    """A model to be trained: `mlp` as the classifier it is, as its sum of outputs is all cancellation."""
    case = model_named(name, device).build_on(device, dtype)
    if name != "mlp":
        return case
    wanted = torch.randint(0, 10, (len(case.inputs[0]),)).to(device)
    return replace(case, loss=lambda output: torch.nn.functional.cross_entropy(output, wanted))


def whole_step(case: Case, backend: str, let_go: bool = False) -> Callable[[], torch.Tensor]:
    """A training step, compiled in the backend's way; nothing is compiled yet."""
    opt: Any = torch.optim.AdamW(case.module.parameters(), lr=1e-4)

    def keeping(model: Any, opt: Any, update: Callable[[], Any]) -> torch.Tensor:
        opt.zero_grad()
        loss = case.loss(case.call(model))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update()
        return loss

    def letting_go(model: Any, opt: Any, update: Callable[[], Any]) -> torch.Tensor:
        loss = case.loss(case.call(model))
        loss.backward()
        update()
        opt.zero_grad()
        return loss

    step = letting_go if let_go else keeping

    def whole(model: Any, opt: Any) -> torch.Tensor:
        return step(model, opt, opt.step)

    if backend == "smelt":
        import smelt

        compiled = smelt.compile(whole, fullgraph=True)
        return lambda: compiled(case.module, opt)
    if backend == "torch.compile":
        model, update = torch.compile(case.module), torch.compile(opt.step)
        return lambda: step(model, opt, update)
    return lambda: whole(case.module, opt)


def main(arguments: Sequence[str]) -> None:
    name, dtype, backend, *way = arguments
    step = whole_step(stepped(name, getattr(torch, dtype)), backend, let_go=way == ["let-go"])
    print(json.dumps({"peak": allocated_at_peak(lambda: [step() for _ in range(3)])}))


if __name__ == "__main__":
    main(sys.argv[1:])
