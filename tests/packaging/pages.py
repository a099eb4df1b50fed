"""The pages of packages as a new user follows them: their code blocks are the files and commands of a test."""

import re
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"


def blocks(package: str, language: str) -> list[str]:
    """The code blocks of a language on a package's page, in order."""
    text = (PACKAGES / package / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", text)


def block(package: str, language: str, word: str) -> str:
    """The one with a word in it."""
    (found,) = [code for code in blocks(package, language) if word in code]
    return found
