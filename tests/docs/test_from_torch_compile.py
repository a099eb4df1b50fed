"""The page for users of `torch.compile` leaves nothing out: each argument, each helper, each log name has its row."""

import inspect

import torch
import torch.compiler
from torch._logging._internal import log_registry

from smelt.base.events import CHANNELS
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "from_torch_compile.md").read_text(encoding="utf-8")


def test_every_argument_has_a_row() -> None:
    for name in inspect.signature(torch.compile).parameters:
        assert f"| `{name}` |" in PAGE, name


def test_every_helper_has_a_row() -> None:
    for name in torch.compiler.__all__:
        assert f"`{name}`" in PAGE, name


def test_every_log_name_has_a_row() -> None:
    for name in log_registry.artifact_names - {"custom_format_test_artifact"}:
        assert f"`{name}`" in PAGE, name


def test_every_channel_is_named() -> None:
    logs = PAGE.split("## TORCH_LOGS")[1]
    for name in CHANNELS:
        assert f"`{name}`" in logs, name
