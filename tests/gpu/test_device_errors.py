"""Errors on the GPU itself, each in a process of its own: PyTorch's error, and the process lives to tell it."""

import pytest

from tests import processes

_SCRIPT = """
import torch, smelt
import torch.nn.functional as F
torch.set_default_device("cuda")
table = torch.randn(10, 8)
functions = {
    "gather": lambda i: torch.gather(table, 0, i[:, None].expand(-1, 8)) * 2,
    "embedding": lambda i: F.embedding(i, table).sin(),
    "index": lambda i: table[i] + 1,
    "index_select": lambda i: table.index_select(0, i).exp(),
    "scatter": lambda i: torch.zeros(10, 8).scatter_add(0, i[:, None].expand(-1, 8), torch.ones(i.shape[0], 8)) * 2,
    "cross entropy": lambda i: F.cross_entropy(table[: i.shape[0]] * 2, i, reduction="none"),
}
function = functions[NAME]
run = smelt.compile(function) if COMPILED else function
right = torch.tensor([0, 3, 7])
run(right), run(right)
torch.cuda.synchronize()
try:
    run(torch.tensor([0, 10**6, 7]))
    torch.cuda.synchronize()
    print("no error")
except Exception as error:
    print(type(error).__name__, "|", str(error).splitlines()[0])
"""


@pytest.mark.parametrize("name", ["gather", "embedding", "index", "index_select", "scatter", "cross entropy"])
def test_an_index_out_of_range(name: str) -> None:
    """Eager's error comes from the device, at the next call that waits for it; ours is that one, or the host raises it
    before anything is launched. Never silence, never a crash."""
    eager, mine = (
        processes.run_new(_SCRIPT.replace("NAME", repr(name)).replace("COMPILED", str(compiled)))
        for compiled in (False, True)
    )
    assert mine.returncode in (0, eager.returncode), f"the process ended with {mine.returncode}:\n{mine.stderr[-2000:]}"
    assert "no error" not in mine.stdout, f"eager says {eager.stdout!r}"
    of_host = "IndexError" in mine.stdout or "out of" in mine.stdout
    assert of_host or mine.stdout == eager.stdout, f"{mine.stdout!r}, eager {eager.stdout!r}"


_ASSERTED = """
import torch, smelt
torch.set_default_device("cuda")
def positive(x):
    assert (x > 0).all(), "not positive"
    return x.sqrt() * 2
def normal(x):
    return torch.distributions.Normal(x, x.exp(), validate_args=True).log_prob(x)
for function in (positive, normal):
    compiled = smelt.compile(function, fullgraph=True)
    x = torch.rand(64) + 0.5
    torch.testing.assert_close(compiled(x), function(x))
    for wrong in (-x, x * float("nan")):
        told = []
        for run in (function, compiled):
            try:
                told.append(run(wrong).sum().item())
            except Exception as error:
                told.append((type(error).__name__, str(error)))
        if isinstance(told[0], float):
            torch.testing.assert_close(told[1], told[0], rtol=1e-5, atol=0, equal_nan=True)
        else:
            assert told[0] == told[1], told
    torch.testing.assert_close(compiled(x), function(x))  # the device is there as before
print("done")
"""


def test_a_branch_that_raises_leaves_the_device_alone() -> None:
    """Eager waits for the value and raises on the host; so does a graph, and Python makes the message."""
    found = processes.run_new(_ASSERTED)
    assert found.returncode == 0 and "done" in found.stdout, found.stdout + found.stderr[-3000:]


_NOT_WAITED_FOR = """
import torch, smelt
def function(x):
    torch._assert_async((x > 0).all())
    return x + 1
compiled = smelt.compile(function, fullgraph=True)
x = torch.ones(1 << 20, device="cuda")
compiled(x), compiled(x)
torch.cuda.synchronize()
torch.cuda.set_sync_debug_mode("error")
found = compiled(x)
torch.cuda.set_sync_debug_mode("default")
torch.testing.assert_close(found, x + 1)
try:
    compiled(-x)
    torch.cuda.synchronize()
    print("no error")
except Exception as error:
    print(type(error).__name__)
"""


def test_a_check_that_nobody_waits_for_stops_the_device() -> None:
    found = processes.run_new(_NOT_WAITED_FOR)
    assert found.returncode == 0 and "Error" in found.stdout, found.stdout + found.stderr[-3000:]
