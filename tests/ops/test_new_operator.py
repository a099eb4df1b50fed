"""Adding an operator is one edit: the example of CONTRIBUTING.md, added to its family, is compiled and fused."""

import re
from pathlib import Path

from tests.processes import run

ROOT = Path(__file__).parents[2]

USE = """
import smelt

@smelt.compile(fullgraph=True)
def loss(x, target):
    return torch.nn.functional.soft_margin_loss(x * 2, target)

x, target = torch.linspace(-2, 2, 24).view(4, 6), torch.ones(4, 6)
torch.testing.assert_close(loss(x, target), torch.nn.functional.soft_margin_loss(x * 2, target))
assert "soft_margin" not in str(smelt.explain(loss)), smelt.explain(loss)
"""


def test_the_example_of_contributing_needs_no_other_edit() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"```python\n(@decomposes.*?)```", page, re.DOTALL)
    family = (ROOT / "src" / "smelt" / "ops" / "decompose" / "losses.py").read_text()
    assert "soft_margin_loss" not in family, "choose another example: this operator is there"
    edited = f"import smelt.ops.decompose.losses as family\nexec({example!r}, family.__dict__)\nimport torch\n"
    done = run(edited + USE)
    assert done.returncode == 0, done.stderr
