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
