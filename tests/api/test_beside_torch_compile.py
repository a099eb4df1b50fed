"""smelt and `torch.compile` in one process, either inside the other."""

import pytest

from tests.api.beside import SCENARIOS
from tests.processes import COMPILER, PLAIN, run

_DYNAMO = "import torch._dynamo, torch._dynamo.backends.debugging, torch._functorch.aot_autograd\n"
# In these `torch.compile` brings its modules along while smelt is at work; elsewhere both have been imported.
_IMPORTED_INSIDE = ("torch_calls_smelt", "optimizers_beside_a_decorator", "compiled_inside")


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_are_at_work(name: str) -> None:
    _run(name, COMPILER if name in _IMPORTED_INSIDE else COMPILER + _DYNAMO)


def test_torch_compile_may_be_there_first() -> None:
    _run("nested_thrice", "import torch\n" + _DYNAMO + PLAIN)


def _run(name: str, begin: str) -> None:
    script = f"from tests.api.beside import SCENARIOS\nSCENARIOS[{name!r}]()\nprint('right')"
    done = run(script, begin=begin, seconds=240)
    assert done.stdout.splitlines()[-1:] == ["right"], done.stderr[-4000:]
