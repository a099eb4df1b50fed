"""Dead code elimination.

    sin = sin(x); cos = cos(x); return cos      →      cos = cos(x); return cos

Inputs stay, and so do calls with side effects: drawing random numbers, writing memory.
"""

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.meta.effects import why_not_drop


def drop_dead(traced: Traced, budget: RewriteBudget) -> Traced:
    """Not optional, so it takes nothing from the budget."""
    for node in reversed(list(traced.graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr" or why_not_drop(node) is None:
            traced.graph.erase_node(node)
    return traced
