"""Programs of popular libraries, cold: the first call of a new process is one graph, and its results are eager's."""

import importlib.util
import json

import pytest

from benchmarks.library_programs import PROGRAMS
from tests.processes import run

# Programs that are whole, by the package that they need.
WHOLE = {
    "einops": ("einops", "einops-layers"),
    "x_transformers": (
        "x-transformers",
        "x-transformers-flash",
        "x-transformers-rotary",
        "x-transformers-kv-heads",
        "x-transformers-vit",
    ),
    "torch": ("sdpa-kernel",),
}

SCRIPT = """
import json
from benchmarks.graph_breaks import count
print(json.dumps(count({name!r})))
"""


@pytest.mark.parametrize(
    ("package", "program"), [(package, each) for package, programs in WHOLE.items() for each in programs]
)
def test_the_first_call_is_one_graph(package: str, program: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = run(SCRIPT.format(name=program))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["graphs"], found["breaks"], found["recompiles"]) == (1, 0, 0), found["reasons"]
    assert found["same"]


def test_every_program_that_is_whole_is_counted() -> None:
    assert {each for programs in WHOLE.values() for each in programs} <= set(PROGRAMS)
