"""A collective runs exactly as often as the program asks for it, whatever fails around it: nothing that has started one
is run again. One process counts its own by the numbers of its process group."""

import pytest

from tests.processes import run

_BEGIN = """
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as funcol
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
started = dist.group.WORLD._get_sequence_number_for_group

table, state, log = torch.arange(4.0), torch.zeros(3), []

def reduced(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)

class Swallows:
    def __enter__(self):
        log.append("enter")
    def __exit__(self, kind, error, trace):
        log.append("exit")
        return kind is IndexError
"""

_PROGRAMS = {
    "an index error before": """
def function(x, k):
    return table[k] + reduced(x)
""",
    "an index error after": """
def function(x, k):
    return reduced(x * 2) + table[k]
""",
    "an index error between two": """
def function(x, k):
    y = reduced(x)
    return reduced(y * 2) + nn.functional.embedding(k, x.reshape(4, 1)).sum()
""",
    "a target that is no class, before": """
def function(x, k):
    loss = nn.functional.cross_entropy(x.reshape(1, 4) * 2, k)
    return reduced(x.sum() + 1) + loss
""",
    "an exception of the program": """
def function(x, k):
    y = reduced(x)
    if k[0] > 4:
        raise ValueError(f"{k}")
    return y + 1
""",
    "a shape that does not fit": """
def function(x, k):
    y = reduced(x)
    return y.view(3, 3) if k.shape[0] > 1 else y
""",
    "an assertion before": """
def function(x, k):
    y = x * 2
    assert k.max() < 4
    return reduced(y)
""",
    "an assertion after": """
def function(x, k):
    y = reduced(x * 2)
    assert k.max() < 4, "too large"
    return y + 1
""",
    "a branch between two": """
def function(x, k):
    y = reduced(x)
    return reduced(y * 2) if (y + k).sum() > 10 else reduced(y + 1)
""",
    "a branch that one number decides": """
def function(x, k):
    y = reduced(k)
    return reduced(y + 1) if y > 2 else reduced(y * 2)
""",
    "sizes that data tell, after": """
def function(x, k):
    y = reduced(x + k)
    kept = y[y > 2]
    return kept.sum() if kept.shape[0] > 2 else reduced(y)
""",
    "sizes that data tell, before": """
def function(x, k):
    kept = x[x + k > 2]
    return reduced(kept.sum() if kept.shape[0] > 2 else x)
""",
    "a handler around both": """
def function(x, k):
    y = x * 2
    try:
        y = reduced(y)
        z = table[k]
    except IndexError:
        z = reduced(y)
    return y + z
""",
    "a handler behind": """
def function(x, k):
    y = reduced(x)
    try:
        z = table[k]
    except IndexError:
        z = table[:1]
    return y + z
""",
    "a handler before": """
def function(x, k):
    try:
        z = table[k]
    except IndexError:
        z = table[:1]
    return reduced(x) + z
""",
    "finally": """
def function(x, k):
    try:
        return reduced(x) + table[k]
    finally:
        log.append("done")
""",
    "a context of the program": """
def function(x, k):
    y = x
    with Swallows():
        y = reduced(x)
        y = y + table[k]
    return y
""",
    "a context of PyTorch": """
def function(x, k):
    with torch.no_grad():
        return reduced(x) + table[k]
""",
    "a change of the program's objects": """
def function(x, k):
    log.append("called")
    return reduced(x) + table[k]
""",
    "a change of the program's tensors": """
def function(x, k):
    state.add_(1)
    return reduced(x) + table[k] + state.sum() * 0
""",
}

_COMPARE = """
def outcomes(call):
    log.clear(), state.zero_()
    found = []
    for numbers in ([1], [1], [9], [1], [9, 9, 9, 9], [9]):
        before = started()
        try:
            result = call(torch.ones(4), torch.tensor(numbers)).tolist()
        except Exception as error:
            result = type(error).__name__, str(error)
        found.append((result, started() - before))
    return found, list(log), state.tolist()

def compare(name, program):
    exec(program, globals())
    want = outcomes(function)
    for backend, smelt.config.capture_data in (("eager", False), ("llvm", False), ("llvm", True)):
        smelt.reset()
        have = outcomes(smelt.compile(function, backend=backend))
        assert have == want, f"{name}: {backend}, capture_data={smelt.config.capture_data}:\\n{have}\\n{want}"
        assert smelt.counters["graphs"] > 0

smelt.config.suppress_errors = False
for name, program in programs.items():
    compare(name, program)
"""
_PROCESSES = 4  # each takes seconds to begin


@pytest.mark.parametrize("number", range(_PROCESSES))
def test_runs_as_often_as_in_eager(number: int) -> None:
    programs = dict(list(_PROGRAMS.items())[number::_PROCESSES])
    done = run(_BEGIN + f"programs = {programs!r}\n" + _COMPARE, warns=False)
    assert done.returncode == 0, done.stderr


def test_plain_graphs_are_not_split() -> None:
    """An error that leaves the call needs no break, and neither do contexts of PyTorch."""
    done = run(
        _BEGIN
        + """
def function(x, k):
    with torch.no_grad():
        y = reduced(x * 2) + table[k]
    return [reduced(y * each) for each in range(2)]
smelt.compile(function, fullgraph=True)(torch.ones(4), torch.tensor([1]))
assert smelt.counters["graphs"] == 1 and smelt.counters["kernels"] > 0, smelt.counters
"""
    )
    assert done.returncode == 0, done.stderr
