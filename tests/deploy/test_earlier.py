"""Files of earlier versions load and compute what they did. `earlier/VERSION` has what that version wrote.

A file that fails here is a broken promise (docs/compatibility.md). It is not written anew: mend the reader.
"""

import platform
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest

import smelt
from tests.deploy.earlier.write import arrays

HERE = Path(__file__).parent / "earlier"
FILES = sorted(HERE.glob("*/*.npz"))


def close(found: Any, expected: Any) -> None:
    """To the rounding of the C library's functions, which differ from machine to machine."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_each_version_has_kept_files() -> None:
    kept = Counter(path.parent.name for path in FILES)
    assert kept["0.1.0"] == 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_earlier_files_compute_what_they_did(path: Path, tmp_path: Path) -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the files have code for x86-64 and AArch64")
    kept = numpy.load(path)
    file = tmp_path / "model.smelt"
    file.write_bytes(kept["artifact"].tobytes())
    loaded = smelt.load(file)
    for number, entry in enumerate(kept["calls"]):
        inputs = [kept[name] for name in kept.files if name.startswith(f"in {number} ")]
        expected = [kept[name] for name in kept.files if name.startswith(f"out {number} ")]
        found = arrays(loaded.entry(str(entry))(*inputs))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    state = loaded.state_dict()
    assert {f"state {name}" for name in state} == {name for name in kept.files if name.startswith("state ")}
    for name, value in state.items():
        close(numpy.asarray(value), kept[f"state {name}"])
