"""The compiled parts of a graph before they are joined to autograd, and programs bound to their machine code.

Program + kernels ── bind ──► Executable          CompiledParts ── joined() ──► a callable with a node of autograd's
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.codegen import targets as _targets  # noqa: F401  a program out of the cache is launched by its target too
from smelt.device import device_of, launcher_of
from smelt.ir.call_contract import JointPlan, Replay
from smelt.ir.kernel import AnyKernel
from smelt.ir.kernel_code import KernelCode
from smelt.ir.program import Program
from smelt.pipeline.placement import on_chip
from smelt.runtime.autograd.differentiable import Flat, GraphOfBackward, MakeBackward, MakePart
from smelt.runtime.autograd.join import join
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.flatten import BuiltKernel
from smelt.runtime.program.launch import Executable

if TYPE_CHECKING:
    from smelt.codegen import CompiledKernel

Built = Mapping[str, "CompiledKernel"]


@dataclass(frozen=True, slots=True)
class CompiledParts:
    """A compiled graph before it is joined to its caller. Without a plan, `forward` runs it in eager PyTorch."""

    forward: Flat
    plan: JointPlan | None = None
    eager: Flat | None = None
    replay: Replay | str = ""
    backwards: MakeBackward | None = None
    graphs: GraphOfBackward | None = None
    parts: MakePart | None = None
    has_static_shapes: bool = True  # else it shares what was compiled for many

    def joined(self, with_backward: bool = False) -> Flat:
        """`with_backward`: compile a backward now, before gradients arrive."""
        if self.plan is None:
            return self.forward
        backwards = self.backwards
        if backwards is not None and (with_backward or events.collecting()):
            backwards = _one_at_once(backwards, self.plan)
        return join(
            self.forward,
            backwards,
            self.plan,
            replay=self.replay,
            eager=self.eager,
            consuming=True,
            graphs=self.graphs,
            parts=self.parts,
            has_static_shapes=self.has_static_shapes,
        )


def _one_at_once(backwards: MakeBackward, plan: JointPlan) -> MakeBackward:
    """Compile one backward eagerly, that of the losses if there are any: a collector of events may never run one, and
    in the background it costs the program no time."""
    everything = (1 << len(plan.tangents)) - 1
    losses = sum(1 << number for number, spec in enumerate(plan.tangents) if not spec.shape)
    likely = losses or everything
    backward = backwards(likely)
    if backward is None and likely != everything:
        likely, backward = everything, backwards(everything)
    return lambda arrived: backward if arrived == likely else backwards(arrived)


def executable_of(run: Flat) -> Executable:
    """What a callable that `bind` made runs."""
    executable = run.__dict__["executable"]
    assert isinstance(executable, Executable)
    return executable


def launcher_for(target: str, code: KernelCode, kernel: Callable[[], AnyKernel]) -> BuiltKernel:
    """What launches the code of a kernel. The kernel itself is asked for if code for buffers at any address is needed,
    which is seldom."""

    def unaligned() -> KernelCode:
        from smelt.codegen.build import compile_unaligned

        return compile_unaligned(kernel())

    launcher: BuiltKernel = launcher_of(target)(code, unaligned)
    return launcher


def bind(
    program: Program, kernels: Mapping[str, KernelCode], options: Options, consuming: bool, arenas: Arenas
) -> Executable:
    """A program and the code of its kernels as something to run."""
    chip = device_of(options.target)
    if chip is not None:
        program = on_chip(program, chip)

    def launcher(kernel: AnyKernel) -> BuiltKernel:
        return launcher_for(kernel.target, kernels[kernel.name], lambda: kernel)

    launchers = {kernel.name: launcher(kernel) for kernel in program.kernels}
    return Executable(
        program,
        launchers,
        options.threads,
        kernels,
        consuming=consuming,
        arenas=arenas,
        cuda_graphs=options.cuda_graphs,
    )
