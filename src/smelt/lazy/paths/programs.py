"""Programs of recorded paths: compiled once for what is alive at the end, with numbers and sizes that change as inputs.

A number is a constant of the program until it changes. That is found out in two ways: another run of the same path
brings another number, or the same line of the program brought another one in an earlier path (an optimizer's first
step is recorded otherwise than its second, but its numbers come from the same lines).

A path that differs in sizes alone from one that was there before is compiled in symbols, and what was compiled then is
taken for further sizes (`families`). Sizes of 0 and 1 behave unlike all others, so they have programs of their own.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base import events
from smelt.base.errors import warn
from smelt.base.worker import Job, Worker
from smelt.dispatch.tensors import Layout
from smelt.ir.graph import GraphCompiler, scalar_tensor, sized, unchecked
from smelt.lazy.memory import Memory, adopted
from smelt.lazy.paths.families import Row, Skeletons, SymbolicSizes, in_symbols
from smelt.lazy.paths.graph import build
from smelt.lazy.paths.replay import replay
from smelt.lazy.real_device import RealDevice
from smelt.lazy.steps import Step

VARIANTS = 4
"""How many programs are compiled for one path before all its numbers are operands."""

SYMBOLIC = 4
"""How many programs in symbols are compiled for one family."""

STATIC = 64
"""How many paths of one family have programs of their own; PyTorch runs further ones, operator by operator."""

ROWS = 8
"""How many rows of sizes a family remembers."""

Run = Callable[..., tuple[Any, ...]]

_CONSTANT, _DYNAMIC = -1, -2  # as csrc/lazy/launch.c has them


class Sites:
    """Numbers by the line and operator that brought them, to know those that change."""

    def __init__(self) -> None:
        self._seen: dict[Any, str | int] = {}

    def varying(self, path: Sequence[Step], numbers: Sequence[Any]) -> set[int]:
        """The places of numbers that another path had otherwise."""
        places: set[int] = set()
        occurrences: Counter[Any] = Counter()
        for step in path:
            if step.before is None or step.numbers == step.before.numbers:
                continue
            where = (step.line, step.operator)
            occurrences[where] += 1
            for place in range(step.before.numbers, step.numbers):
                site = (*where, occurrences[where], place - step.before.numbers)
                value = exact(numbers[place])
                if self._seen.setdefault(site, value) != value:
                    places.add(place)
        return places


class Variant:
    """The program for certain constants, with `sizes` in symbols; `run` is None where PyTorch runs the path, for this
    reason. Of numbers that vary together, `leaders` has the place of the first by the places of all."""

    def __init__(
        self,
        constants: dict[int, Any],
        leaders: dict[int, int],
        run: Run | None,
        sizes: SymbolicSizes | None = None,
        reason: str = "",
    ) -> None:
        self.constants = constants
        self.leaders = leaders
        self.varying = tuple(sorted(set(leaders.values())))
        self.run = run
        self.sized = None if run is None else sized(run)
        self.sizes = sizes
        self.reason = reason
        self.kernels = 0  # of its program

    def fits(self, numbers: Sequence[Any]) -> bool:
        return self.have_leaders(numbers) and all(
            exact(numbers[place]) == value for place, value in self.constants.items()
        )

    def have_leaders(self, numbers: Sequence[Any]) -> bool:
        """Whether numbers that were equal are so again."""
        return all(
            place == leader or exact(numbers[place]) == exact(numbers[leader]) for place, leader in self.leaders.items()
        )

    def launch(
        self, row: Row, live: tuple[int, ...], inputs: Sequence[Any], numbers: Sequence[Any]
    ) -> _native.LazyLaunch | None:
        """The program as C runs it for numbers like these; None if it asks more of a call."""
        if self.run is None or self.sizes is not None:
            return None
        program = unchecked(self.run, *inputs, *self.beside(row, numbers))
        if program is None or any(type(numbers[place]) not in (int, float) for place in self.varying):
            return None
        first = len(inputs)
        fixed = {self.varying[place - first] for place in program.fixed}
        leaders = [self.leaders.get(place, _CONSTANT) for place in range(len(numbers))]
        for place, leader in self.leaders.items():
            if place == leader:
                leaders[place] = _CONSTANT if place in fixed else _DYNAMIC
        return _native.LazyLaunch(
            call=program.call,
            inputs=len(inputs),
            numbers=tuple(numbers),
            leaders=tuple(leaders),
            scalars=tuple([self.varying[place - first] for place in program.scalars]),
            live=live,
            results=program.results,
            scalar=scalar_tensor,
            adopt=adopted,
        )

    def beside(self, row: Row, numbers: Sequence[Any]) -> list[Any]:
        """Inputs of the program after the tensors."""
        scalars = [numbers[place] for place in self.varying]
        return scalars if self.sizes is None else [*scalars, *[row[place] for place in self.sizes.argument_places]]


class Family:
    """Paths of one skeleton with the same values alive. Only the thread that compiles writes it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.symbolic: list[Variant] = []
        self.static = 0
        self.refused = 0


class Programs:
    """All that was compiled, and what compiles."""

    def __init__(self, compiler: GraphCompiler, real: RealDevice) -> None:
        self._compiler = compiler
        self._real = real
        self.worker = Worker("smelt-lazy")
        self.compiled = 0
        self.not_compiled: Counter[str] = Counter()
        self.forget()

    def forget(self) -> None:
        self._sites = Sites()
        self._skeletons = Skeletons()
        self._families: dict[Any, Family] = {}

    def of(self, step: Step, live: tuple[int, ...], numbers: Sequence[Any]) -> "PathProgram":
        """What was compiled for the path up to a step, which decides what types its numbers are."""
        program: PathProgram | None = step.programs.get(live)
        if program is None:
            path = step.path()
            skeleton, row = self._skeletons.read(path, numbers)
            family = self._families.setdefault((skeleton, live), Family())
            program = step.programs[live] = PathProgram(path, live, row, family)
        return program

    def prepare(self, program: "PathProgram", variant: Variant, numbers: Sequence[Any]) -> None:
        """Have what a run would make first: on the thread for that, with nothing of the program's state."""
        if variant.sized is None:
            return
        beside = variant.beside(program.row, numbers)
        if not variant.sized.is_ready(*program.examples, *beside):
            self._submitted(lambda: self._prepared(program, variant, numbers)).wait()

    def job(self, program: "PathProgram", numbers: Sequence[Any]) -> Job:
        """Make the variant of a path for these numbers."""
        kept = list(numbers)
        return self._submitted(lambda: self._made(program, kept))

    def _submitted(self, function: Callable[[], Any]) -> Job:
        def with_device() -> Any:
            with self._real.selected():
                return function()

        return self.worker.submit(with_device)

    # On the thread that compiles.

    def _made(self, program: "PathProgram", numbers: Sequence[Any]) -> tuple[Variant, bool]:
        """The variant, and whether it was compiled."""
        varying = self._sites.varying(program.path, numbers)
        for known in program.family.symbolic:
            if known.sizes is not None and known.sizes.fits(program.row) and known.fits(numbers):
                if self._prepared(program, known, numbers):
                    return known, False
                break
        family = program.family
        variant = self._symbolic(program, numbers, varying) or self._static(program, numbers, varying)
        if program.row not in family.rows:
            family.rows = [*family.rows[1 - ROWS :], program.row]
        return variant, variant.run is not None

    def _prepared(self, program: "PathProgram", known: Variant, numbers: Sequence[Any]) -> bool:
        """Whether a program in symbols is ready for the sizes of a path now."""
        try:
            if known.sized is not None:
                known.sized.prepare(*program.examples, *known.beside(program.row, numbers))
        except Exception as error:
            self._failed(program, error)
            return False
        return True

    def _symbolic(self, program: "PathProgram", numbers: Sequence[Any], varying: set[int]) -> Variant | None:
        """In symbols, if there was a path of other sizes and nothing else is in the way."""
        family = program.family
        if not family.rows or len(family.symbolic) >= SYMBOLIC or family.refused > 1:
            return None
        sizes = in_symbols(program.path, program.row, family.rows)
        if sizes is None:
            return None
        for known in family.symbolic:
            varying |= set(known.leaders)
            varying |= {place for place, value in known.constants.items() if exact(numbers[place]) != value}
        together = all(known.have_leaders(numbers) for known in family.symbolic)
        variant = self._compiled(program, numbers, varying, sizes, together)
        if variant.run is None:
            family.refused += 1
            return None
        family.symbolic.insert(0, variant)
        return variant

    def _static(self, program: "PathProgram", numbers: Sequence[Any], varying: set[int]) -> Variant:
        if program.family.static >= STATIC:
            return Variant({}, {}, None, None, f"it was compiled for {STATIC} combinations of sizes")
        for known in program.variants:
            varying |= {place for place, value in known.constants.items() if exact(numbers[place]) != value}
            varying |= set(known.leaders)
        if len(program.variants) >= VARIANTS:
            varying = set(range(len(numbers)))
        together = all(known.have_leaders(numbers) for known in program.variants)
        variant = self._compiled(program, numbers, varying, None, together)
        program.family.static += not program.variants
        return variant

    def _compiled(
        self,
        program: "PathProgram",
        numbers: Sequence[Any],
        varying: set[int],
        sizes: SymbolicSizes | None,
        together: bool,
    ) -> Variant:
        """`together`: numbers that are equal now are one operand."""
        can_vary = {place for place, value in enumerate(numbers) if type(value) in (int, float)}
        run: Run | None = None
        reason = ""
        kernels = events.counters["kernels"]
        for attempt in (_leaders(varying & can_vary, numbers, together), dict[int, int]()):
            try:
                traced = build(program.path, program.live, numbers, attempt, self._real.device, sizes)
                run = self._compiler(traced)
            except Exception as error:
                reason = self._failed(program, error)
            if run is not None or not attempt:
                break
        constants = {place: exact(value) for place, value in enumerate(numbers) if place not in attempt}
        self.compiled += run is not None
        variant = Variant(constants if run is not None else {}, attempt if run is not None else {}, run, sizes, reason)
        variant.kernels = events.counters["kernels"] - kernels
        return variant

    def _failed(self, program: "PathProgram", error: Exception) -> str:
        reason = f"{type(error).__name__}: {error}"
        events.emit("lazy", f"a graph of {len(program.path)} steps is not compiled: {reason}")
        return reason

    # On the threads of the program.

    def take(self, job: Job) -> tuple[Variant, bool]:
        """What a job has made. A graph that is not compiled is told of, once for each reason."""
        try:
            variant, compiled = job.wait()
        except Exception as error:
            variant, compiled = Variant({}, {}, None, None, f"{type(error).__name__}: {error}"), False
        if variant.run is None:
            self.not_compiled[variant.reason] += 1
            if self.not_compiled[variant.reason] == 1:
                warn(f"SM020: a recorded graph is not compiled and runs operator by operator: {variant.reason}")
        return variant, compiled


Launch = tuple[_native.LazyLaunch, Variant]


class PathProgram:
    """What was compiled for one path with certain values alive at its end."""

    def __init__(self, path: list[Step], live: tuple[int, ...], row: Row, family: Family) -> None:
        self.path = path
        self.live = live
        self.row = row
        self.family = family
        self.variants: list[Variant] = []
        self.examples = [_without_data(step.layout) for step in path if step.layout is not None]
        self._launches: dict[Variant, Launch | None] = {}
        self._job: Job | None = None

    def variant(self, numbers: Sequence[Any], programs: Programs, wait: bool) -> tuple[Variant | None, bool]:
        """The one for these numbers, and whether it was compiled for this call; None while it is compiled."""
        while True:
            for known in self.variants:
                if known.fits(numbers):
                    return known, False
            if self._job is None or self._job.is_lost:
                self._job = programs.job(self, numbers)
            if not wait and not self._job.is_done:
                return None, False
            variant, compiled = programs.take(self._job)
            self._job = None
            self.variants.insert(0, variant)
            if variant.fits(numbers):
                return variant, compiled and wait

    def run(self, variant: Variant, inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Sequence[Any]:
        if variant.run is None:
            return self.replayed(inputs, numbers)
        return variant.run(*inputs, *variant.beside(self.row, numbers))

    def launch(self, variant: Variant, inputs: Sequence[Memory], numbers: Sequence[Any]) -> Launch | None:
        """What runs the variant without looking for it; None if there is no such thing."""
        if variant not in self._launches:
            launch = variant.launch(self.row, self.live, [memory.real for memory in inputs], numbers)
            self._launches[variant] = None if launch is None else (launch, variant)
        return self._launches[variant]

    def replayed(self, inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> list[Any]:
        values = replay(self.path, inputs, numbers, set(self.live))
        return [values[value] for value in self.live]


def _leaders(varying: Collection[int], numbers: Sequence[Any], together: bool) -> dict[int, int]:
    """For each place of a number that varies the first place with the same number: an optimizer has one rate for all
    parameters."""
    first: dict[Any, int] = {}
    return {
        place: first.setdefault((type(numbers[place]), exact(numbers[place])), place) if together else place
        for place in sorted(varying)
    }


def _without_data(layout: Layout) -> torch.Tensor:
    shape, stride, _, dtype = layout
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def exact(number: Any) -> Any:
    """A number as something that tells -0.0 from 0.0 and 1 from True, and finds nan again."""
    return number if type(number) is int else repr(number)
