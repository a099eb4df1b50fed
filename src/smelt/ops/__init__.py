"""What the compiler knows of operators, one record each: how it lowers, and what it costs.

`registry.record_of(op)` finds a record; `registry.why_not_lower(node)` says why a call stays a library call.
"""

from smelt.meta.facts import FAMILIES

# Families whose records have shapes and effects beside their decompositions.
FAMILIES += ["smelt.ops.decompose.activations", "smelt.ops.decompose.losses"]
