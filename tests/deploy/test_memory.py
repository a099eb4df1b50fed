"""What a program without Python has in memory at its peak: weights and state once, and the plan of a call."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.deploy.programs import built

MEGABYTE = 1 << 20
OWN = 4 * MEGABYTE  # of the program itself and of the C library


def _peak(function: Callable[..., Any], given: torch.Tensor, folder: Path) -> int:
    path = smelt.export(function, (given,)).save(folder / "model.smelt")
    (folder / "0.bin").write_bytes(given.numpy().tobytes())
    words = [built("benchmarks/deploy_worker.c", folder), path, 1, folder / "output.bin", folder / "0.bin"]
    done = subprocess.run(
        [*map(str, words)], input="2\n", capture_output=True, text=True, check=True, timeout=120, env={}
    )
    first, later = map(json.loads, done.stdout.splitlines())
    assert later["processor"] > 0
    peak: int = first["peak"]
    return peak


@pytest.mark.parametrize("megabytes", [8, 32])
def test_weights_are_in_memory_once(megabytes: int, tmp_path: Path) -> None:
    table = torch.nn.Parameter(torch.randn(megabytes * MEGABYTE // 256, 64))
    peak = _peak(lambda rows: torch.nn.functional.embedding(rows, table.detach()), torch.arange(5), tmp_path)
    assert peak <= 1.1 * megabytes * MEGABYTE + OWN


@pytest.mark.parametrize("megabytes", [8, 32])
def test_state_is_in_memory_once(megabytes: int, tmp_path: Path) -> None:
    table = torch.randn(megabytes * MEGABYTE // 256, 64)

    def update(factor: torch.Tensor) -> torch.Tensor:
        table.mul_(factor)
        return factor + 1

    assert _peak(update, torch.ones(64), tmp_path) <= 1.1 * megabytes * MEGABYTE + OWN
