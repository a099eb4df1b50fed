"""What of PyTorch's operator database is left to PyTorch, and why: fragments of the reason → operators.

The sweep holds this list to what happens, in both directions of interest: an operator that is not listed must be
compiled, for every sample, and one that is must give the reason that stands here.
"""

REASONS: dict[str, tuple[str, ...]] = {}


def is_listed(operator: str, reason: str) -> bool:
    """Whether it is known that `operator` is left to PyTorch for this reason."""
    return any(fragment in reason and operator in operators for fragment, operators in REASONS.items())
