"""Programs by feature of Python or PyTorch: each is captured whole and held against plain Python.

    @feature("namedtuples")
    def fields(x):
        return Point(x, x + 1).right
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import smelt
from tests.capture.generated.picture import Picture, difference
from tests.capture.programs import error_shape

Program = Callable[..., Any]


@dataclass(frozen=True)
class Featured:
    """A program and what is special about it."""

    feature: str
    program: Program
    requires_grad: bool
    backward: bool
    made: bool

    @property
    def name(self) -> str:
        return f"{self.feature}: {self.program.__name__}"


PROGRAMS: list[Featured] = []


def feature(
    name: str, *, requires_grad: bool = False, backward: bool = False, made: bool = False
) -> Callable[[Program], Program]:
    """Enter a program. `backward`: it returns a loss, and its gradient is compared too. `made`: it is what makes the
    program, for plain Python and for capture each their own."""

    def enter(program: Program) -> Program:
        PROGRAMS.append(Featured(name, program, requires_grad or backward, backward, made))
        return program

    return enter


def observed(call: Callable[[torch.Tensor], Any], featured: Featured, number: int) -> list[Any]:
    """Everything that can be seen of a call: what comes back, the exception, the argument afterwards."""
    x = (torch.arange(6.0).reshape(2, 3) + number).requires_grad_(featured.requires_grad)
    torch.manual_seed(number)
    seen = Picture()
    try:
        result = call(x)
    except smelt.SmeltError:
        raise
    except Exception as error:
        seen.see(["raised", *map(str, error_shape(error)[:3])])
        return seen.atoms
    if featured.backward:
        result.sum().backward()
    seen.see([result, x, x.grad])
    return seen.atoms


def hold_against_python(featured: Featured, calls: int = 3) -> None:
    """`calls` calls captured whole, against as many plain ones; after the first nothing is captured again."""
    smelt.reset()
    python, program = featured.program, featured.program
    if featured.made:
        python, program = program(), program()
    compiled = smelt.compile(program, backend="eager", fullgraph=True)
    for number in range(calls):
        plain = observed(python, featured, number)
        mine = observed(compiled, featured, number)
        wrong = difference(mine, plain, exact=False)
        assert wrong is None, wrong
