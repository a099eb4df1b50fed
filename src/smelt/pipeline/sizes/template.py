"""A graph compiled in symbols and bound to sizes: stages run once, each new combination only fills in numbers.

    graph over x: f32[s0, 4]   ── trace, simplify, fuse, generate ──►   Template: program and machine code over s0
    Template at s0 = 7         ──►   the program for 7: planned buffers, kernels that are given {7, 28, …} at launch

Whatever a stage relies on is a guard of the `ShapeEnv` its symbols belong to (`symbolic.symsize`). Sizes for which some
guard does not hold get a version of their own, made with them as the example; after `VERSIONS` of these a half is
compiled for each combination of sizes alone.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch

from smelt import _native
from smelt.autograd.joint.trace_joint import Pure
from smelt.autograd.partition.partition import ForwardBackward
from smelt.base import events, locks
from smelt.base.errors import ChipFailed, is_fault
from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import HOST
from smelt.fuse.memory_plan import lifetimes, plan
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced
from smelt.ir.kernel import SIZES, AnyKernel, Buffer, Kernel, Role
from smelt.ir.kernel_code import GridPhase
from smelt.ir.program import Launch, Place, Program, ProgramBuffer, Step
from smelt.ir.substitute_sizes import Change, Fill, filling, resized_graph
from smelt.ir.tensorspec import TensorSpec
from smelt.pipeline.sizes.open_table import MakeLauncher, OpenTable, open_table, rounded
from smelt.pipeline.sizes.runner_sizes import Reading
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.launch import Executable
from smelt.symbolic.expressions import DataDependent, Expression, ShapeEnv, SizeGuard, Symbol
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import expression_of, moving, varies

if TYPE_CHECKING:
    from smelt.codegen.build import CompiledKernel
from smelt.codegen.loops.runtime_sizes import as_integer

VERSIONS = 8
"""How many sets of size guards a graph, or a half of one, is compiled for."""

MAX_TABLES = 8
"""How many sets of size guards a version is flattened for."""

Values = Mapping[Symbol, int]
Built = Mapping[str, "CompiledKernel"]
Generate = Callable[[Traced, str], tuple[Program, Built]]


def at(values: Values) -> Change:
    """What a size is for these values of its symbols."""
    return lambda size: size.evaluate(values.__getitem__)


def hold(facts: tuple[SizeGuard, ...], values: Values) -> bool:
    return all(fact.holds(values.__getitem__) for fact in facts)


class TemplateForm:
    """A program in symbols with blanks for sizes: parts without blanks are prepared once."""

    def __init__(self, program: Program, kernels: Built) -> None:
        self.program, self.kernels = program, kernels
        self.lives = lifetimes(program)
        self.ends = filling((program.buffers, program.outputs))
        # Of launches the kernels are filled in, each once.
        self.calls = [None if isinstance(step, Launch) else filling(step) for step in program.steps]
        self.codes = {kernel.name: (kernel, filling(kernel)) for kernel in program.kernels}
        self.needs = {name: filling(_needs(built)) for name, built in kernels.items()}

    def at(self, values: Values) -> tuple[Program, Built]:
        """The program for these sizes; kernels get the sizes they need as runtime parameters."""
        program, codes = self.filled(at(values), values)
        return plan(program, self.lives), codes

    def filled(self, change: Change, values: Values) -> tuple[Program, Built]:
        """The program with other sizes, not planned. Kernels are for `values`."""
        program = self.program
        buffers, outputs = (program.buffers, program.outputs) if self.ends is None else self.ends(change)
        buffers, constants = list(buffers), list(program.constants)
        codes: dict[str, CompiledKernel] = {}
        launched: dict[str, tuple[AnyKernel, str]] = {}  # by kernel: for these sizes, and the buffer it reads them from
        for name, (kernel, fill) in self.codes.items():
            built, needs = self.kernels[name], self.needs[name]
            codes[name] = built if needs is None else _with_needs(built, needs(at(values)))
            launched[name] = kernel if fill is None else fill(change), ""
            if built.sizes:
                numbers = [as_integer(size.evaluate(values.__getitem__)) for size in built.sizes]
                sized = launched[name][0]
                assert isinstance(sized, Kernel)  # sizes of groups are plain numbers
                launched[name] = _with_sizes_buffer(sized, len(numbers)), f"{name}_sizes"
                spec = TensorSpec((len(numbers),), (1,), torch.int64, HOST)
                buffers.append(ProgramBuffer(launched[name][1], spec, Place.CONSTANT))
                constants.append((launched[name][1], torch.tensor(numbers, dtype=torch.int64, device=HOST)))
        steps: list[Step] = []
        for step, call in zip(program.steps, self.calls, strict=True):
            if isinstance(step, Launch):
                kernel, sizes = launched[step.kernel.name]
                steps.append(Launch(kernel, (*step.args, sizes) if sizes else step.args))
            else:
                steps.append(step if call is None else call(change))
        new = replace(program, buffers=tuple(buffers), constants=tuple(constants), steps=tuple(steps), outputs=outputs)
        return new, codes

    def objects_at(self, table: OpenTable, values: Values, launcher: MakeLauncher) -> dict[int, Any]:
        """What a table refers to that is another for these sizes, by its place: the sizes that kernels get as runtime
        parameters, and what launches kernels whose workspace depends on sizes."""
        objects: dict[int, Any] = {}
        constants = {name: place for place, (name, _) in enumerate(table.program.constants)}
        change = at(values)
        for name, (kernel, fill) in self.codes.items():
            built, needs = self.kernels[name], self.needs[name]
            if fill is not None or needs is not None:
                code = built if needs is None else _with_needs(built, needs(change))
                objects[table.launchers[name]] = launcher(code, _filling_later(kernel, fill, built, change))
            if built.sizes:
                numbers = [as_integer(size.evaluate(values.__getitem__)) for size in built.sizes]
                objects[constants[f"{name}_sizes"]] = torch.tensor(numbers, dtype=torch.int64, device=HOST)
        return objects


    def with_room(
        self, table: OpenTable, values: Values, launcher: MakeLauncher
    ) -> tuple[dict[int, Any], dict[Expression, int]]:
        """What launches kernels whose workspace depends on sizes, with room for larger ones, by its place in a table;
        and the most that they may need."""
        objects: dict[int, Any] = {}
        limits: dict[Expression, int] = {}
        larger = {symbol: rounded(value) for symbol, value in values.items()}
        for name, needs in self.needs.items():
            if needs is None:
                continue
            built, now, then = self.kernels[name], needs(at(values)), needs(at(larger))
            per_thread, fixed = max(now[0], then[0]), max(now[1], then[1])
            code = replace(built, per_thread_workspace=per_thread, workspace=fixed)
            objects[table.launchers[name]] = launcher(code, functools.partial(_not_asked_for, name))
            for size, most in ((built.per_thread_workspace, per_thread), (built.workspace, fixed)):
                if varies(size):
                    limits[expression_of(size)] = most
        return objects, limits


@dataclass(slots=True)
class _Version:
    facts: tuple[SizeGuard, ...]
    form: TemplateForm
    shape_env: ShapeEnv
    tables: list[OpenTable] = field(default_factory=list)
    opens_tables: bool = True  # until there are many, or sizes decide more than words of a table


@dataclass(slots=True)
class Template:
    """One half of a graph in symbols, with the programs made of it."""

    half: Traced
    shape_env: ShapeEnv
    name: str
    generate: Generate
    versions: list[_Version] = field(default_factory=list)
    why_static: str | None = None
    checks: bool = False  # raise the compiler's own errors
    lock: Any = field(default_factory=locks.lock)

    def at(self, values: Values) -> tuple[Program, Built] | None:
        """The program and its kernels for these sizes; None if the half must be compiled statically."""
        with _native.Held(self.lock):
            chosen = next((version for version in self.versions if hold(version.facts, values)), None)
            if chosen is None and self.why_static is None and len(self.versions) < VERSIONS:
                try:
                    chosen = self._made(values)
                except ChipFailed:
                    raise
                except Exception as error:  # compile for plain sizes instead
                    if self.checks and is_fault(error, DataDependent):
                        raise
                    self.why_static = f"{type(error).__name__}: {error}"
                    events.count("sizes_refused")
                    text = f"{self.name} is compiled for each combination of sizes: {self.why_static}"
                    events.emit("sizes", text)
                else:
                    self.versions.append(chosen)
        return None if chosen is None else chosen.form.at(values)

    def _made(self, values: Values) -> _Version:
        shape_env = self.shape_env.with_examples(values.__getitem__)
        half = resized_graph(self.half, moving(shape_env))
        program, kernels = self.generate(half, self.name)
        events.emit("sizes", f"{self.name} relies on {', '.join(map(str, shape_env.guards)) or 'nothing'}", shape_env)
        return _Version(tuple(shape_env.guards), TemplateForm(program, kernels), shape_env)

    def bind(self, values: Values, launcher: MakeLauncher, consuming: bool, threads: int, arenas: Arenas) -> Any:
        """What runs a version for these sizes, by filling in a table; None if that is not possible."""
        with _native.Held(self.lock):
            version, table = self._table(values, launcher, consuming)
            if version is None or table is None:
                return None
            objects = version.form.objects_at(table, values, launcher)
            return table.bind(values, objects, version.form.kernels, threads, arenas)

    def for_all_sizes(
        self,
        values: Values,
        facts: tuple[SizeGuard, ...],
        readings: Sequence[Reading],
        launcher: MakeLauncher,
        threads: int,
        arenas: Arenas,
    ) -> "tuple[OpenTable, Executable] | None":
        """What runs a version for these sizes and for others, and its table; None if that is not possible."""
        with _native.Held(self.lock):
            version, table = self._table(values, launcher, False)
            if version is None or table is None or not table.is_for_all:
                return None
            kernels = version.form.kernels
            kernel_sizes = {name: built.sizes for name, built in kernels.items() if built.sizes}
            objects, limits = version.form.with_room(table, values, launcher)
            facts = (*facts, *version.facts)
            executable = table.for_all_sizes(
                values, facts, limits, readings, kernel_sizes, objects, kernels, threads, arenas
            )
            table.is_for_all = executable is not None
            return None if executable is None else (table, executable)

    def _table(
        self, values: Values, launcher: MakeLauncher, consuming: bool
    ) -> tuple[_Version | None, OpenTable | None]:
        """The version for these sizes, and its table, which is made if need be."""
        version = next((version for version in self.versions if hold(version.facts, values)), None)
        if version is None:
            return None, None
        table = next((table for table in version.tables if table.holds(values)), None)
        if table is None and version.opens_tables:
            table = self._opened(version, values, launcher, consuming)
            if table is not None:
                version.tables.append(table)
            version.opens_tables = table is not None and len(version.tables) < MAX_TABLES
        return version, table

    def _opened(self, version: _Version, values: Values, launcher: MakeLauncher, consuming: bool) -> OpenTable | None:
        """A version flattened in symbols; None, with a reason in the log, if it cannot be."""
        form = version.form
        try:
            shape_env = version.shape_env.with_examples(values.__getitem__)
            program, codes = form.filled(moving(shape_env), values)
            places = {buffer.name: buffer.place for buffer in form.at(values)[0].buffers}
            buffers = tuple(replace(buffer, place=places[buffer.name]) for buffer in program.buffers)
            kernels = {kernel.name: kernel for kernel in program.kernels}
            launchers = {
                name: launcher(code, functools.partial(kernels.__getitem__, name)) for name, code in codes.items()
            }
            return open_table(replace(program, buffers=buffers), form.lives, launchers, shape_env, consuming)
        except ChipFailed:
            raise
        except Exception as error:  # flatten for each combination of sizes instead
            if self.checks and is_fault(error, DataDependent):
                raise
            events.emit("sizes", f"{self.name} is flattened for each combination of sizes: {error}")
            return None


def _not_asked_for(name: str) -> AnyKernel:
    raise AssertionError(f"{name}: code for the CPU takes buffers at any address")


_Needs = tuple[Size, Size, tuple[GridPhase, ...]]


def _needs(built: "CompiledKernel") -> _Needs:
    """What a launch needs that depends on sizes."""
    return built.per_thread_workspace, built.workspace, built.phases


def _with_needs(built: "CompiledKernel", needs: _Needs) -> "CompiledKernel":
    per_thread, workspace, phases = needs
    return replace(built, per_thread_workspace=per_thread, workspace=workspace, phases=phases)


def _filling_later(
    kernel: AnyKernel, fill: Fill | None, built: "CompiledKernel", change: Change
) -> Callable[[], AnyKernel]:
    """What returns a kernel for sizes: `TemplateForm.filled` has the same."""

    def filled() -> AnyKernel:
        sized: AnyKernel = kernel if fill is None else fill(change)
        if not built.sizes:
            return sized
        assert isinstance(sized, Kernel)  # sizes of groups are plain numbers
        return _with_sizes_buffer(sized, len(built.sizes))

    return filled


def _with_sizes_buffer(kernel: Kernel, count: int) -> Kernel:
    """The kernel with a last buffer for its sizes."""
    return replace(kernel, buffers=(*kernel.buffers, Buffer(SIZES, torch.int64, count, Role.INPUT)))


@dataclass(slots=True)
class Tracing:
    """A graph traced in symbols, its size guards, and what makes programs of its halves."""

    number: int
    shape_env: ShapeEnv
    graphs: Pure | ForwardBackward
    facts: tuple[SizeGuard, ...]
    generate: Generate
    templates: dict[str, Template] = field(default_factory=dict)
    checks: bool = False  # raise the compiler's own errors
    plan_filling: Fill | None = None  # makes the plan for sizes; None if it is the same for all

    def __post_init__(self) -> None:
        self.plan_filling = filling(self.graphs.plan)

    def is_made_for(self, values: Values) -> bool:
        """Whether each program compiled from it in symbols fits these sizes, and there is one."""
        templates = self.templates.values()
        return bool(templates) and all(any(hold(each.facts, values) for each in one.versions) for one in templates)

    def template(self, half: Traced, name: str) -> Template:
        """`half` is one of the graphs, or a part of one; equal names, equal halves."""
        return self.templates.setdefault(name, Template(half, self.shape_env, name, self.generate, checks=self.checks))


@dataclass(frozen=True, slots=True)
class Bound:
    """A graph traced in symbols, for sizes."""

    tracing: Tracing
    values: Values

    def plan(self) -> JointPlan:
        plan: JointPlan = self.tracing.graphs.plan
        fill = self.tracing.plan_filling
        return plan if fill is None else fill(at(self.values))

    def program(self, half: Traced, name: str) -> tuple[Program, Built] | None:
        """A half of the graph, or a part of one, as a program for the sizes; None if it must be compiled statically."""
        return self.tracing.template(half, name).at(self.values)

    def run(
        self, half: Traced, name: str, launcher: MakeLauncher, consuming: bool, threads: int, arenas: Arenas
    ) -> Any:
        """What runs a half of the graph, if that was compiled and filling in a table is enough; else None."""
        return self.tracing.template(half, name).bind(self.values, launcher, consuming, threads, arenas)

    def run_all(
        self, half: Traced, name: str, readings: Sequence[Reading], launcher: MakeLauncher, threads: int, arenas: Arenas
    ) -> "tuple[OpenTable, Executable] | None":
        """What runs a graph without backward for these sizes and others, if that was compiled and a call can fill in
        what depends on sizes."""
        template = self.tracing.templates.get(name)
        if template is None or template.half is not half:
            return None
        return template.for_all_sizes(self.values, self.tracing.facts, readings, launcher, threads, arenas)

    def graph(self, half: Traced) -> Traced:
        """A half of the graph for the sizes."""
        return resized_graph(half, at(self.values))

    def halves(self) -> ForwardBackward | None:
        """The graphs for the sizes, and the plan in symbols."""
        graphs = self.tracing.graphs
        if isinstance(graphs, Pure):
            return None
        backward = None if graphs.backward is None else self.graph(graphs.backward)
        arriving = graphs.arriving
        marked = None if arriving is None else lambda: self.graph(arriving())
        return replace(graphs, forward=self.graph(graphs.forward), backward=backward, arriving=marked)
