"""The command line. `smelt info` says what this installation can do here."""

import argparse
import platform
import sys
from collections.abc import Sequence

import torch

import smelt
from smelt.base.events import CHANNELS
from smelt.base.options import Config, Options, describe


def _info() -> str:
    lines = [
        f"smelt {smelt.__version__}, torch {torch.__version__}",
        f"Python {platform.python_version()} on {platform.machine()}",
        f"threads: {torch.get_num_threads()}",
        "backends: " + ", ".join(smelt.list_backends()),
        "log channels (SMELT_LOGS=…):",
    ]
    lines += [f"  {name:20} {text}" for name, text in CHANNELS.items()]
    for title, kind in (("options of smelt.compile(options={…}):", Options), ("settings of smelt.config:", Config)):
        lines.append(title)
        lines += [f"  {name:20} {doc} (default {default!r})" for name, default, doc in describe(kind)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `smelt` command."""
    parser = argparse.ArgumentParser(prog="smelt", description="A compiler for PyTorch programs.")
    parser.add_argument("--version", action="version", version=smelt.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, backends, options and log channels")
    parser.parse_args(arguments)
    print(_info())
    return 0


if __name__ == "__main__":
    sys.exit(main())
