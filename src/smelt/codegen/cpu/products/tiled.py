"""Products in register tiles of packed panels, for sizes that are worth packing."""

from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.generator import EntryCode
from smelt.device import Target


def why_not(problem: Problem, target: Target) -> str | None:
    return "no code for tiles yet"


def cycles(problem: Problem, target: Target) -> float:
    return float(problem.multiplications)


def write(symbol: str, problem: Problem, target: Target) -> EntryCode:
    raise NotImplementedError
