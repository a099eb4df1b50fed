"""`GraphFacts`: what exploring for export has to know of a captured graph beside its plan."""

from smelt.base.fast_dataclass import dataclass
from smelt.symbolic.expressions import ShapeEnv, Symbol


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """`open_symbols` differ from state to state. `written` are positions of inputs that the graph writes. `views` say
    of each output whether it shares memory: with an input ("input", position), an earlier output ("output", position),
    or nothing (None). `own_generators`: it draws from a `torch.Generator`; `defers`: it leaves calls for later.

    The origins of symbols are sources, whose indices are those of what was collected.
    """

    shape_env: ShapeEnv
    open_symbols: frozenset[Symbol]
    written: tuple[int, ...]
    views: tuple[tuple[str, int] | None, ...]
    own_generators: bool
    defers: bool
