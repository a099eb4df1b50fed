"""The commands: what they print, what they exit with, and that each explains itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from smelt.cli import main, parser
from smelt.cli.running import compiling_everything

PROGRAM = """
import torch
from torch import nn

def example():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)), (torch.randn(4, 8),)

def with_words():
    return (lambda x, k=1: x * k), (torch.ones(2),), {"k": 3}

def nothing():
    return 5
"""

SCRIPT = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh() * 2
        return x

torch.manual_seed(0)
net, loss = Net(), nn.MSELoss()
x = torch.randn(4, 8)
for _ in range(3):
    loss(net(x), x).backward()
doubled = torch.compile(lambda v: v * 2, mode="max-autotune")
print("arguments", sys.argv[1:], f"{net.layers[0].weight.grad.sum():.4f}", doubled(torch.ones(1)))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return str(file)


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Both outputs of a command in a process of its own."""
    ended = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env={**os.environ})
    assert ended.returncode == code, ended.stderr
    return ended.stdout, ended.stderr


def test_a_script_runs_as_by_python_but_compiled(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plain, _ = run(str(script), "--epochs", "3")
    compiled, said = run("-m", "smelt.cli", "run", str(script), "--epochs", "3")
    assert compiled == plain and "['--epochs', '3']" in plain
    assert "3 graphs" in said and "0 breaks, 0 recompiles in 7 compiled calls" in said


def test_a_script_that_fails_fails_as_by_python(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import sys\nsys.exit(7)\n")
    run("-m", "smelt.cli", "run", "--quiet", str(script), code=7)
    script.write_text("raise ValueError('mine')\n")
    _, said = run("-m", "smelt.cli", "run", "--quiet", str(script), code=1)
    assert "ValueError: mine" in said
    assert main(["run", str(tmp_path / "absent.py")]) == 2


def test_module_calls_are_plain_again_afterwards() -> None:
    before = torch.nn.Module.__call__
    with compiling_everything("eager"):
        assert torch.nn.Module.__call__ is not before
    assert torch.nn.Module.__call__ is before


def test_explain_verify_bisect_and_bench(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{program}:example"]) == 0
    assert "Graph Count: 1" in capsys.readouterr().out
    assert main(["verify", f"{program}:example"]) == 0
    assert "llvm        right" in capsys.readouterr().out
    assert main(["bisect", f"{program}:with_words", "--out", str(tmp_path / "repro.py")]) == 0
    assert "agrees with eager" in capsys.readouterr().out
    assert main(["bench", f"{program}:example", "--backward", "--seconds", "0"]) == 0
    assert "times eager's speed" in capsys.readouterr().out


BAD = ["nothing", ":", "absent.py:f", "no_such_module:f", "{program}:absent", "{program}:nothing"]


@pytest.mark.parametrize("target", BAD)
def test_a_bad_target_is_explained(target: str, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", target.format(program=program)]) == 2
    assert "smelt verify:" in capsys.readouterr().err


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = (action.choices for action in parser()._actions if action.dest == "command")
    assert commands is not None and {"run", "explain", "verify", "bisect", "bench", "doctor", "cache"} <= set(commands)
    for name in commands:
        with pytest.raises(SystemExit) as ended:
            main([str(name), "--help"])
        assert ended.value.code == 0 and f"example: smelt {name}" in capsys.readouterr().out


def test_info_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "memory_budget" in out and "disk_cache_dir" in out and "compiled_autograd" in out
