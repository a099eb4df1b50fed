"""`CompiledRegion`: what `smelt.compile` makes and calls."""

from collections.abc import Callable, Hashable
from typing import Any

from smelt.capture.driver.engine import Engine
from smelt.ir.graph import GraphCompiler


class CompiledRegion:
    """Everything compiled for one `smelt.compile`.

    `call(function, *args, **kwargs)` runs the function with its frames captured, `entering(function)` makes a function
    that does; `reset()` forgets all that was compiled. Functions of equal `settings` are captured into each other.
    """

    def __init__(
        self,
        compile_graph: GraphCompiler,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        fallback: bool = True,
        settings: Hashable = None,
    ) -> None:
        engine = Engine(compile_graph, fullgraph=fullgraph, dynamic=dynamic, fallback=fallback, settings=settings)
        self.native = engine.native
        self.settings, self.fullgraph = settings, fullgraph
        self.call: Callable[..., Any] = engine.call
        self.entering: Callable[[Callable[..., Any]], Callable[..., Any]] = engine.entering
        self.reset: Callable[[], None] = engine.reset
        self.why_left: Callable[[], list[str]] = engine.why_left
