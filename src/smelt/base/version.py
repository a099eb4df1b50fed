"""The version of smelt, and the versions of Python and PyTorch that its tests run with (`tools/test_versions.py`)."""

import re

VERSION = "0.1.0"
PYTHONS = ((3, 11), (3, 12), (3, 13))
TORCHES = ((2, 11), (2, 15))  # the oldest and the newest


def why_not_tested(torch_version: str) -> str | None:
    """What to say of a PyTorch that the tests do not run with; None for one that they do."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2])
    oldest, newest = TORCHES
    if oldest <= numbers <= newest:
        return None
    how = "newer" if numbers > newest else "older"
    tested = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return f"PyTorch {torch_version} is {how} than the versions smelt is tested with ({tested})"
