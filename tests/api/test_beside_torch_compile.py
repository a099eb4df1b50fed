"""smelt and `torch.compile` in one process, either inside the other."""

import subprocess
import sys

import pytest

from tests.api.beside import SCENARIOS
from tests.processes import run


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_are_at_work(name: str) -> None:
    begin = f"import runpy, sys\nsys.argv.append({name!r})\n"
    script = begin + "runpy.run_module('tests.api.beside', run_name='__main__', alter_sys=True)"
    done = run(script, seconds=240)
    assert done.stdout.splitlines()[-1:] == ["right"], done.stderr[-4000:]


def test_torch_compile_may_be_there_first() -> None:
    script = (
        "import torch._dynamo\nfrom tests.api.beside import SCENARIOS\nSCENARIOS['nested_thrice']()\nprint('right')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines()[-1:] == ["right"], done.stderr[-4000:]
