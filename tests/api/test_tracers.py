"""Compiled functions and modules under PyTorch's own tracers: the trace is that of the original.

Each case in a process of its own, because what goes wrong here ends it.
"""

from pathlib import Path

import pytest

from tests.processes import run

_BEFORE = """
import torch
import smelt
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))) + x.sin()

class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2

def function(x):
    return torch.relu(x) * 2 + x.sin()

model, x, y = Model().eval(), torch.randn(3, 4), torch.randn(3, 4)
compiled, compiled_function = smelt.compile(model), smelt.compile(function)

def same(found, expected):
    torch.testing.assert_close(found, expected)
"""
_COMPILED_BEFORE = """
for sizes in (3, 5):
    compiled(torch.randn(sizes, 4)), compiled_function(torch.randn(sizes, 4))
"""

CASES = {
    "trace": """
same(torch.jit.trace(compiled, (x,))(y), model(y))
same(torch.jit.trace(compiled_function, (x,))(y), function(y))
same(torch.jit.trace(Outer(compiled), (x,))(y), model(y) * 2)
same(torch.jit.trace(smelt.compile(Outer(compiled)), (x,))(y), model(y) * 2)
same(compiled(y), model(y))
""",
    "trace with gradients": """
model.train()
traced = torch.jit.trace(compiled, (x,), check_trace=False)
traced(y).sum().backward()
assert model.linear.weight.grad is not None
""",
    "trace inside": """
@smelt.compile
def outer(x):
    first = function(x)
    traced = torch.jit.trace(function, (x,))
    return first + traced(y)

for _ in range(3):
    same(outer(x), function(x) + function(y))
""",
    "graph for onnx and for tensorboard": """
graph, _ = torch.jit._get_trace_graph(compiled, (x,))[:2]
expected, _ = torch.jit._get_trace_graph(model, (x,))[:2]
assert [n.kind() for n in graph.nodes()] == [n.kind() for n in expected.nodes()], graph
""",
    "script": """
same(torch.jit.script(compiled)(y), model(y))
same(torch.jit.script(compiled_function)(y), function(y))
same(torch.jit.script(Outer(compiled))(y), model(y) * 2)
same(compiled(y), model(y))
""",
    "fx": """
same(torch.fx.symbolic_trace(compiled)(y), model(y))
same(torch.fx.symbolic_trace(compiled_function)(y), function(y))
same(torch.fx.symbolic_trace(Outer(compiled))(y), model(y) * 2)
""",
}


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_original_is_traced(name: str, is_compiled: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # a file, because TorchScript reads the source
    script.write_text(_BEFORE + _COMPILED_BEFORE * is_compiled + CASES[name] + "print('right')")
    done = run(script.read_text(), file=str(script), warns=False, seconds=240)
    assert done.stdout.splitlines()[-1:] == ["right"], (done.returncode, done.stderr[-4000:])
