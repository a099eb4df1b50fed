"""Launches kernels that differ only in length together, such as an optimizer's updates of all parameters.

    launch k1(g1, p1); launch k2(g2, p2); launch k3(g3, p3)   →   launch k1_and_2_more(g1, p1, g2, p2, g3, p3)

Kernels that reduce, such as the norms of gradients, are launched together if they are equal.

Launching takes the host as long as a small kernel takes the GPU. The pass goes through the steps in order. A launch
that others may join waits until a step needs it or overwrites what it reads; a launch that depends on a waiting one
waits with it, so that all step counts are computed together and then all updates. A waiting launch must not keep much
memory: one that is the last reader of something large is launched before the next other step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.fusion_limits import Limits
from smelt.fuse.records import Together
from smelt.ir.kernel import (
    Accumulate,
    Contract,
    Gather,
    Kernel,
    KernelGroup,
    Reduce,
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
    WeightedSum,
)
from smelt.ir.program import Launch, Place, Program, Step, arena_bytes, reads, touched, writes
from smelt.ir.substitute_sizes import length_axis, lengthened, shape_env_of
from smelt.ir.text import format_kernel
from smelt.symbolic.shapes import product

_LARGE = 1 << 20  # bytes that a launch keeps in memory while it waits
_MOST_HELD = 32 << 20  # bytes that all of a group keep there
MAX_REDUCED = 8192  # points of a row that one block reduces, such as the gradient of a bias for its norm
MAX_RESULTS = 16  # elements of all points together

Kind = tuple[str, bool, bool]  # a kernel's text but for its length; whether it has one point; whether it holds much


@dataclass(slots=True)
class _Waiting:
    """Waiting launches of one kind, by their numbers in the program."""

    kind: Kind
    numbers: list[int] = field(default_factory=list)
    after: set[int] = field(default_factory=set)  # of the waiting ones, by identity, those that come before it
    held: int = 0
    waits: bool = True


def group_launches(program: Program, limits_of: Callable[[str], Limits], budget: RewriteBudget) -> Program:
    """The program with such kernels grouped."""
    return _Grouping(program, limits_of, budget).run()


class _Grouping:
    def __init__(self, program: Program, limits_of: Callable[[str], Limits], budget: RewriteBudget) -> None:
        self.program, self.limits_of, self.budget = program, limits_of, budget
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.kinds: dict[int, str | None] = {}  # by identity of a kernel
        self.waiting: list[_Waiting] = []
        self.writer: dict[str, _Waiting] = {}  # of a buffer, of those that waited
        self.users: dict[str, list[_Waiting]] = {}
        self.ordered: list[tuple[Step, tuple[int, ...]]] = []
        self.groups = 0

    def run(self) -> Program:
        steps = self.program.steps
        if sum(isinstance(step, Launch) and self._kind(step) is not None for step in steps) < 2:
            return self.program
        for number, step in enumerate(steps):
            kind = self._kind(step) if isinstance(step, Launch) else None
            if kind is None:
                self._launch_needed(number)
                self.ordered.append((step, (number,)))
            else:
                self._wait(number, kind)
        self._launch(self.waiting)
        if not self.groups:
            return self.program
        if events.wanted("fusion"):
            text = f"{self.groups} launches run several kernels each"
            events.emit("fusion", text, Together(tuple(numbers for _, numbers in self.ordered)))
        return replace(self.program, steps=tuple(step for step, _ in self.ordered))

    # --- who waits ------------------------------------------------------------------------------------

    def _kind(self, step: Launch) -> str | None:
        """A key shared by kernels that may share a launch; None for kernels that are launched alone."""
        kernel = step.kernel
        if isinstance(kernel, KernelGroup):
            return None
        if id(kernel) not in self.kinds:
            most = self.limits_of(kernel.target).group_buffers
            alone = 2 * len(kernel.parameters) > most
            self.kinds[id(kernel)] = None if alone else family(kernel)
        return self.kinds[id(kernel)]

    def _wait(self, number: int, text: str) -> None:
        step = self.program.steps[number]
        assert isinstance(step, Launch) and isinstance(step.kernel, Kernel)
        held = self._held(number)
        kind = (text, step.kernel.col_count == 1, held > _LARGE)
        needed = self._needed(number)
        before = self._behind(needed)
        waiting = next((each for each in self.waiting if each.kind == kind and id(each) not in before), None)
        if waiting is None:
            waiting = _Waiting(kind)
            self.waiting.append(waiting)
        waiting.numbers.append(number)
        waiting.held += held
        waiting.after |= {id(each) for each in needed}
        self.writer.update(dict.fromkeys(writes(step), waiting))
        for name in touched(step):
            self.users.setdefault(name, []).append(waiting)

    def _held(self, number: int) -> int:
        """Bytes that are freed once a launch has run, or as soon as nothing else reads them."""
        names = dict.fromkeys(reads(self.program.steps[number]))
        buffers = [self.buffers[name] for name in names]
        temporary = (Place.ARENA, Place.FRESH, Place.LIBRARY)
        return sum(int(arena_bytes(each)) for each in buffers if each.place in temporary and not each.spec.varies)

    def _needed(self, number: int) -> list[_Waiting]:
        """The waiting launches that must come before a step: they write what it uses, or use what it writes."""
        step = self.program.steps[number]
        waiting = [self.writer[name] for name in touched(step) if name in self.writer]
        waiting += [each for name in writes(step) for each in self.users.get(name, ())]
        return list({id(each): each for each in waiting if each.waits}.values())

    def _behind(self, some: Iterable[_Waiting]) -> set[int]:
        """Some waiting launches and all that come before them, by identity."""
        by_id = {id(each): each for each in self.waiting}
        before: set[int] = set()
        left = [id(each) for each in some]
        while left:
            at = left.pop()
            if at not in before and at in by_id:
                before.add(at)
                left += by_id[at].after
        return before

    # --- who is launched ------------------------------------------------------------------------------

    def _launch_needed(self, number: int) -> None:
        """Launch what a step needs, and what would keep much memory while it runs."""
        needed = self._needed(number)
        needed += [each for each in self.waiting if each.kind[2] or each.held > _MOST_HELD]
        if needed:
            wanted = self._behind(needed)
            self._launch([each for each in self.waiting if id(each) in wanted])

    def _launch(self, some: Sequence[_Waiting]) -> None:
        left = list(some)
        while left:
            ids = {id(each) for each in left}
            each = next(each for each in left if not each.after & (ids - {id(each)}))
            left = [other for other in left if other is not each]
            each.waits = False
            self._launch_all(each.numbers)
        self.waiting = [each for each in self.waiting if each.waits]

    def _launch_all(self, numbers: Sequence[int]) -> None:
        launches = [step for number in numbers if isinstance(step := self.program.steps[number], Launch)]
        most = self.limits_of(launches[0].target).group_buffers // len(launches[0].args)
        parts = -(-len(launches) // most)
        for part in range(parts):  # as long as each other, but for one
            first, end = (len(launches) * each // parts for each in (part, part + 1))
            self._launch_together(launches[first:end], tuple(numbers[first:end]))

    def _launch_together(self, launches: Sequence[Launch], numbers: tuple[int, ...]) -> None:
        kernels = tuple(step.kernel for step in launches if isinstance(step.kernel, Kernel))
        if len(launches) == 1 or not self.budget.take(*(kernel.name for kernel in kernels)):
            self.ordered += [(step, (number,)) for step, number in zip(launches, numbers, strict=True)]
            return
        name = f"g{self.groups}_{kernels[0].name}_and_{len(kernels) - 1}_more"
        self.groups += 1
        args = tuple(each for step in launches for each in step.args)
        self.ordered.append((Launch(KernelGroup(name, kernels), args), numbers))


def family(kernel: Kernel) -> str | None:
    """The text of a kernel without its name; of a pointwise one along one axis without its length, too."""
    if shape_env_of(kernel) is not None or any(buffer.role is Role.SCRATCH for buffer in kernel.buffers):
        return None
    if _is_reduction(kernel):
        return format_kernel(replace(kernel, name="kernel"))
    axis = length_axis(kernel)
    if axis is None or kernel.rows or axis.size < 1 or not _is_pointwise(kernel.stages):
        return None
    return format_kernel(replace(lengthened(kernel, axis, 0), name="kernel"))


def _is_reduction(kernel: Kernel) -> bool:
    """Whether a kernel reduces all of its points to a few numbers, or those of a short row beside other values."""
    if any(isinstance(i, Scan | Gather | Scatter | Contract | WeightedSum) for i in kernel.instructions()):
        return False
    few = all(buffer.size <= MAX_RESULTS for buffer in kernel.buffers if buffer.role is not Role.INPUT)
    if not few and (kernel.rows or product(axis.size for axis in kernel.cols) > MAX_REDUCED):
        return False
    return any(isinstance(i, Reduce) for i in kernel.instructions())


def _is_pointwise(stages: Sequence[Stage]) -> bool:
    """One loop without reductions, after values that are the same for all points."""
    *before, last = stages
    if not last.loop or any(isinstance(i, Reduce | Scan | Accumulate) for i in last.body):
        return False
    return not any(stage.loop or any(isinstance(i, Store | Accumulate) for i in stage.body) for stage in before)
