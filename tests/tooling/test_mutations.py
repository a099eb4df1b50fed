"""The places that `make test-mutations` breaks exist. Where code moved, `tools/mutations.py` needs another text."""

import pytest

from tools import mutations


def test_each_mutation_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "CLONE", mutations.ROOT)
    for mutation in mutations.MUTATIONS:
        assert mutation.find().exists()
        assert (mutations.ROOT / mutation.tests).is_dir()
