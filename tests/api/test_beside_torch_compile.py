"""smelt and `torch.compile` in one process, either inside the other."""

import os
import subprocess
import sys

import pytest

from tests.api.beside import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_are_at_work(name: str) -> None:
    command = [sys.executable, "-m", "tests.api.beside", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, "SMELT_CACHE": "0"})
    assert done.stdout.splitlines()[-1:] == ["right"], done.stderr[-4000:]


def test_torch_compile_may_be_there_first() -> None:
    script = (
        "import torch._dynamo\nfrom tests.api.beside import SCENARIOS\nSCENARIOS['nested_thrice']()\nprint('right')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines()[-1:] == ["right"], done.stderr[-4000:]
