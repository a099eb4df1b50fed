"""Marks that the user's program carries and capture heeds."""

DISABLED = "_smelt_disable"
"""Functions with this attribute are called by Python, never captured."""


def graph_break() -> None:
    """Ends the captured graph where it is called; does nothing else."""
