"""A PyTorch that smelt is not tested with: the import succeeds with one warning, and results are eager's."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.processes import run

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]

PROGRAM = """
import functools, warnings
import torch

torch.__version__ = "2.99.0"
for path in {missing!r}:
    *holders, name = path.split(".")
    delattr(functools.reduce(getattr, holders, torch), name)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smelt

    x = torch.randn(3, 5, requires_grad=True)
    expected, = torch.autograd.grad((torch.sin(x) * 2).sum(), x)
    compiled = smelt.compile(lambda x: (torch.sin(x) * 2).sum())
    for _ in range(2):
        gradient, = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(gradient, expected)
    model = smelt.compile(torch.nn.Linear(5, 2))
    torch.testing.assert_close(model(x), torch.nn.functional.linear(x, model.weight, model.bias))
    smelt.reset()
(text,) = [str(each.message) for each in caught]
print(text)
try:
    smelt.export(lambda x: x + 1, (torch.ones(2),))
except smelt.SmeltError as error:
    print(error.code)
"""


def output(*missing: str) -> str:
    done = run(PROGRAM.format(missing=missing), begin="import torch")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_newer_torch_is_used_with_one_warning() -> None:
    assert output().startswith("SM080: PyTorch 2.99.0 is newer than the versions smelt is tested with")


def test_an_internal_that_one_kind_of_call_needs_may_be_missing() -> None:
    text = output("_check_with", "_fused_adam_")
    assert "It lacks torch." in text and "torch._check_with" in text and "torch._fused_adam_" in text


def test_an_internal_that_an_experiment_needs_may_be_missing() -> None:
    assert "Nothing is compiled" not in output("_C._dispatch_keys")


@pytest.mark.parametrize(
    "missing",
    [
        "_C._len_torch_dispatch_stack",  # needed to import the compiler
        "_C._autograd._get_current_graph_task_keep_graph",  # needed by a backward
    ],
)
def test_an_internal_that_the_compiler_needs_may_be_missing(missing: str) -> None:
    text = output(missing)
    assert "Nothing is compiled" in text and text.splitlines()[-1] == "SM080"


def test_all_internals_that_calls_use_are_looked_up() -> None:
    from smelt.base.torch_internals import USED_BY_CALLS

    used: set[str] = set()
    for folder in ("runtime", "ir", "capture/driver", "capture/replay"):
        for file in (ROOT / "src" / "smelt" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                names = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else []
                private = [place for place, name in enumerate(names) if re.match(r"_(?!_)", name)]
                if names[:1] == ["torch"] and names[1] != "ops" and private and all(map(str.isidentifier, names)):
                    last = private[-1] + (names[private[-1]] == "_C")
                    used.add(".".join(names[1 : last + 1]))
    checked_where_used = {name for name in used if re.search("cud|sdp_priority", name)} | {"_C"}
    assert set(USED_BY_CALLS) == used - checked_where_used


def test_the_package_asks_for_the_versions_that_are_tested() -> None:
    from smelt.base.version import PYTHONS, TORCHES

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest, newest = TORCHES
    assert f"torch>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}" in project["dependencies"]
    assert project["requires-python"] == f">=3.{PYTHONS[0][1]},<3.{PYTHONS[-1][1] + 1}"
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    assert f"PyTorch {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}" in re.sub(r"\s+", " ", page)
