"""The commands: what they print, what they exit with, and that each explains itself."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.cli import main, parser
from smelt.cli.run import compiling_everything
from tests import processes
from tests.explain.faults import swap_subtractions_merged_with_tanh

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
    if arguments[0] == "-m":
        ended = processes.run_module(*arguments[1:])
    else:
        ended = processes.run(Path(arguments[0]).read_text(), file=arguments[0], arguments=arguments[1:])
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


def test_a_script_is_reported_on_and_timed(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "report.html"
    script.write_text(SCRIPT + "\nsys.exit(3)\n")
    command = ("-m", "smelt.cli", "report", "--profile", "--out", str(out), str(script), "--epochs", "3")
    printed, said = run(*command, code=3)  # as the script ends
    assert "['--epochs', '3']" in printed and f"written to {out}" in said
    page = out.read_text(encoding="utf-8")
    assert "<title>smelt: train.py</title>" in page and '"graphs":3' in page and '"calls":3' in page
    assert main(["report", "--out", str(tmp_path / "none.html"), str(tmp_path / "absent.py")]) == 2
    assert not (tmp_path / "none.html").exists()


WRONG = """
import torch

def example():
    x = torch.linspace(-2, 2, 64).reshape(8, 8)
    return (lambda x, y: (((x.sin() * 2).exp() - y).tanh() + 1).cos().sum()), (x, x.flip(0).clone())
"""


def test_bisect_finds_a_wrong_fusion_and_writes_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, out = tmp_path / "wrong.py", tmp_path / "repro.py"
    program.write_text(WRONG)
    with monkeypatch.context() as patched:
        swap_subtractions_merged_with_tanh(patched)
        assert main(["bisect", f"{program}:example", "--out", str(out)]) == 1
        said = capsys.readouterr().out
        assert "made wrong by a rewrite of" in said and "{tanh}" in said and f"written to {out}" in said
        assert "still wrong with nothing but: sub, tanh" in said
        with pytest.raises(SystemExit) as ended:  # it shows the fault by itself
            runpy.run_path(str(out), run_name="__main__")
        assert ended.value.code == 1 and "WRONG" in capsys.readouterr().out
    printed, _ = run(str(out))  # and runs alone, in a process where nothing is wrong
    assert "llvm        right" in printed
    assert main(["bisect", f"{program}:example", "--out", str(out)]) == 0


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    without = "import sys; sys.modules['llvmlite'] = None; from smelt.cli import main; sys.exit(main(['doctor']))"
    ended = processes.run(without, begin=processes.PLAIN)
    printed = ended.stdout
    assert ended.returncode == 1, ended.stderr
    assert "FAIL  llvmlite" in printed and "pip install llvmlite" in printed
    assert "something is missing: see the lines marked FAIL" in printed
    real = smelt.compile

    def crooked(model: Any, **settings: Any) -> Any:
        compiled = real(model, **settings)
        return (lambda *args: compiled(*args) * 1.001) if settings["backend"] == "llvm" else compiled

    monkeypatch.setattr(smelt, "compile", crooked)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL  self-check" in printed and "WRONG" in printed


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


def test_conform_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "smelt_conform", None)
    assert main(["conform", "sim"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("smelt conform: ")
    assert "pip install smelt-conform" in line and "pip install ./plugins/conform" in line


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = (action.choices for action in parser()._actions if action.dest == "command")
    assert commands is not None and {"run", "explain", "verify", "bisect", "bench", "doctor", "cache"} <= set(commands)
    for name in commands:
        with pytest.raises(SystemExit) as ended:
            main([str(name), "--help"])
        assert ended.value.code == 0 and f"example: smelt {name}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Exit codes: 0 all is well; 1 the answer is no" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run"], ["bench", "x:y", "--seconds", "soon"], ["cache", "burn"]])
def test_what_is_not_understood_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and "usage: smelt" in capsys.readouterr().err


def test_info_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "memory_budget" in out and "disk_cache_dir" in out and "compiled_autograd" in out


def test_export_inspect_and_flags(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "model.smelt"
    assert main(["export", f"{program}:example", "-o", str(made), "--dynamic", "input:0=batch:1:64"]) == 0
    assert "model.smelt: " in capsys.readouterr().out
    assert main(["inspect", str(made)]) == 0
    shown = capsys.readouterr().out
    assert "input: float32[batch 1..64, 8]" in shown and "weights: 4 tensors" in shown and "host: " in shown
    assert smelt.load(made)(torch.ones(5, 8)).shape == (5, 2)
    assert main(["cc", "--static"]) == 0
    assert "-I" in (flags := capsys.readouterr().out) and "libsmelt.a" in flags
    (tmp_path / "cut.smelt").write_bytes(made.read_bytes()[:-5])
    for arguments in (
        ["inspect", str(tmp_path / "cut.smelt")],
        ["inspect", str(tmp_path / "none.smelt")],
        ["export", f"{program}:example", "-o", str(made), "--dynamic", "input=batch"],
        ["export", f"{program}:example", "-o", str(made), "--dynamic", "input:0=batch:1"],
    ):
        assert main(arguments) == 2


@pytest.mark.parametrize("command", ["explain", "verify", "bench"])
def test_a_target_sees_arguments_of_its_own(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "reads_arguments.py"
    file.write_text(
        "import argparse, sys, torch\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--width', type=int, default=4)\n"
        "width = parser.parse_args().width\n"
        "def example():\n"
        f"    assert sys.argv == [{str(file)!r}], sys.argv\n"
        "    return torch.nn.Linear(width, 2), (torch.randn(3, width),)\n"
    )
    before = list(sys.argv)
    assert main([command, f"{file}:example"]) == 0, capsys.readouterr().err
    assert sys.argv == before


def test_the_package_is_a_command() -> None:
    script = "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('smelt', run_name='__main__')"
    done = processes.run_new(script)
    assert done.returncode == 0 and done.stdout.strip() == smelt.__version__
