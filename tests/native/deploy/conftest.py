"""What the tests of the C runtime share: the artifacts of `models`, and the driver, each made once."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native.deploy.building import HERE, compiled, write_models


@dataclass(frozen=True)
class Said:
    """What the driver printed: lines of words, of which the first says what they are."""

    lines: list[str]

    def status(self, what: str) -> list[int]:
        """Of each call of that name."""
        return [int(line.split()[1]) for line in self.lines if line.startswith(f"{what} ")]

    def message(self, what: str) -> str:
        """Of the last call of that name."""
        return next(line.split(" ", 2)[2] for line in reversed(self.lines) if line.startswith(f"{what} "))

    def outputs(self, name: str) -> list[tuple[str, str, bytes]]:
        """dtype, sizes and bytes of each output of that name."""
        found = [line.split(" ") for line in self.lines if line.startswith(f"output {name} ")]
        return [(words[2], words[3].strip("[]"), bytes.fromhex(words[4])) for words in found]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Said]:
    """drive(path, *commands): see driver.c."""
    program = compiled(HERE / "driver.c", tmp_path_factory.mktemp("driver") / "driver")

    def drive(path: Path, *commands: str) -> Said:
        done = subprocess.run([program, path, *commands], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("left 0\n"), "what was allocated is not freed"
        return Said(done.stdout.splitlines())

    return drive
