"""Scripts in processes of their own: what becomes of them where they cannot begin."""

import pytest

from tests.processes import PLAIN, run


def test_what_cannot_begin_is_told_and_not_waited_for() -> None:
    """Code that does not import, say of a C part that is older than the rest."""
    for _ in range(2):
        with pytest.raises(AssertionError, match="has ended"):
            run("print(1)", begin="raise ImportError('no such thing')")
    assert run("print(2)", begin=PLAIN).stdout == "2\n"
