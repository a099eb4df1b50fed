"""One random tensor program on lazy tensors, with runs of what is recorded in between, against eager."""

import dataclasses
import random
import warnings
from typing import Any

import torch

import smelt
from tests.pipeline.generated.grammar import Program
from tests.pipeline.generated.running import Outcome, _function, _verdict, run

STEP = "__import__('smelt').lazy.step()"


class HostOutcome(Outcome):
    """What a call on lazy tensors left, as tensors of the host."""

    def __init__(self, lazy: Outcome) -> None:
        self._sharing = lazy.sharing()  # also of what was returned before a backward raised
        self._grads = [None if grad is None else grad.cpu() for grad in lazy.grads]
        super().__init__(list(map(_on_host, lazy.given)), list(map(_on_host, lazy.results)), lazy.error)

    @property
    def grads(self) -> list[Any]:
        return self._grads

    def sharing(self) -> list[tuple[int, int]]:
        return self._sharing


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach().cpu()
    return found.requires_grad_(tensor.requires_grad)


def failure_of(program: Program) -> str | None:
    """What lazy tensors make other than eager, at which call."""
    smelt.reset()
    chance = random.Random(program.seed)
    lines: list[str] = []
    for line in program.lines:
        lines += [line] if chance.random() < 0.8 else [line, STEP]
    cut = dataclasses.replace(program, lines=tuple(lines))
    for number, sizes in enumerate(program.sizes):
        doubts = 0
        for draw in range(program.seed * 7, program.seed * 7 + 3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with smelt.lazy.enable(background=False):
                    lazy = run(_function(cut, exact=False), cut, sizes, draw, exact=False)
                    try:
                        ours: Outcome = HostOutcome(lazy)
                    except Exception as error:  # what eager raises in the call
                        ours = Outcome([], [], error)
                found, sure = _verdict(ours, program, sizes, draw)
            doubts += found is not None
            if found is not None and (sure or doubts == 2):
                return f"call {number}: {found}"
            if doubts == 0 and draw > program.seed * 7:
                break
    return None
