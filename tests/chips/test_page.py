"""What docs/new_chip.md has readers type, in a process of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path.insert(0, "plugins/sim")
from pathlib import Path
from tests.docs.pages import blocks_of, run_page

page = Path("docs/new_chip.md").resolve()
run_page(page, Path("."))
print(len(list(blocks_of(page))), "blocks")
"""


def test_the_code_of_the_page_runs() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 1
