"""Optional methods of a chip: called where it has them, by eager calls and by compiled programs, and counted."""

import os
import subprocess
import sys
from pathlib import Path

from smelt.device.chip import OPTIONAL, methods

ROOT = Path(__file__).parents[2]
COUNTING = """
import ctypes, sys
sys.path.insert(0, "plugins/sim")
import torch, smelt
from smelt_sim import Sim

class Counting(Sim):
    def __init__(self):
        super().__init__()
        self.asked = []
    def matmul(self, result, a, b, batch, rows, inner, cols, dtype):
        self.asked.append((batch, rows, inner, cols, dtype))
        if dtype != "float32":
            return NotImplemented
        def work():
            def seen(address, *shape):
                count = shape[0] * shape[1] * shape[2]
                values = (ctypes.c_float * count).from_address(self._pointer(address, 4 * count))
                return torch.frombuffer(values, dtype=torch.float32).view(shape)
            seen(result, batch, rows, cols).copy_(seen(a, batch, rows, inner) @ seen(b, batch, inner, cols))
        self._later("matmul", work)
    def random_fill(self, address, count, distribution, seed):
        self.asked.append((distribution, count))
        generator = torch.Generator().manual_seed(seed)
        made = (torch.rand if distribution == "uniform" else torch.randn)(count, generator=generator)
        self.copy_in(address, memoryview(made.numpy()).cast("B"))

chip = Counting()
smelt.register_chip("sim", chip)

def taken():
    found, chip.asked = chip.asked, []
    return found

def close(found, wanted):
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
"""


def run(program: str) -> None:
    command = [sys.executable, "-c", COUNTING + program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_eager_products_are_the_chips() -> None:
    run("""
x, w, v = torch.randn(5, 6), torch.randn(7, 6), torch.randn(3, 6, 4)
close(x.to("sim") @ w.to("sim").t(), x @ w.t())
assert taken() == [(1, 5, 6, 7, "float32")]
close(torch.nn.functional.linear(x.to("sim"), w.to("sim"), torch.ones(7).to("sim")), x @ w.t() + 1)
assert taken() == [(1, 5, 6, 7, "float32")]
close(torch.bmm(v.to("sim").transpose(1, 2), v.to("sim")), torch.bmm(v.transpose(1, 2), v))
assert taken() == [(3, 4, 6, 4, "float32")]
assert smelt.counters["chip_matmuls"] == 3
try:
    x.to("sim") @ x.to("sim")
except RuntimeError as error:
    assert "shape" in str(error)
else:
    raise AssertionError("shapes that do not go together")
assert smelt.counters["chip_matmuls"] == 3
""")


def test_what_a_chip_leaves_is_done_by_kernels() -> None:
    run("""
x = torch.randn(5, 6, dtype=torch.float64)
close(x.to("sim") @ x.to("sim").t(), x @ x.t())
assert taken() == [(1, 5, 6, 5, "float64")] and smelt.counters["chip_matmuls"] == 0
assert smelt.counters["chip_fallbacks"] == 0
""")


def test_compiled_programs_call_them_forward_and_backward() -> None:
    run("""
torch.manual_seed(0)
layer, x = torch.nn.Linear(6, 4), torch.randn(5, 6)
wanted = layer(x).relu().square().sum()
wanted.backward()
grad = layer.weight.grad.clone()
layer.zero_grad()
layer.to("sim")
compiled = smelt.compile(lambda x: layer(x).relu().square().sum(), fullgraph=True)
found = compiled(x.to("sim"))
assert (1, 5, 6, 4, "float32") in taken()
found.backward()
assert len(taken()) == 1
close(found.detach(), wanted.detach())
close(layer.weight.grad, grad)
assert smelt.counters["chip_matmuls"] == 2 and smelt.counters["chip_fallbacks"] == 0
""")


def test_random_numbers_are_the_chips_and_follow_the_seed() -> None:
    run("""
def draw(seed):
    torch.manual_seed(seed)
    return [torch.randn(100, device="sim"), torch.rand(50, device="sim"), torch.empty(9, device="sim").uniform_(2, 3)]
first, again, other = draw(1), draw(1), draw(2)
assert taken() == [("normal", 100), ("uniform", 50), ("uniform", 9)] * 3
assert smelt.counters["chip_random_fills"] == 9
for one, two, three in zip(first, again, other):
    assert torch.equal(one, two) and not torch.equal(one, three)
assert 2 <= first[2].min().item() and first[2].max().item() <= 3
torch.empty(4, dtype=torch.float64, device="sim").normal_()
assert taken() == []
""")


def test_all_optional_methods_are_tried_here() -> None:
    assert set(OPTIONAL) == {"matmul", "random_fill"} and set(OPTIONAL) < set(methods())
