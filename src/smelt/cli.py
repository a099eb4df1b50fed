"""The command line. `smelt info` says what this installation can do here; `smelt cache` looks after the disk cache."""

import argparse
import platform
import sys
from collections.abc import Sequence

import torch

import smelt
from smelt.base.events import CHANNELS
from smelt.base.options import Config, Options, config, describe
from smelt.runtime.cache import Store, directory, open_store


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


def _cache(action: str) -> str:
    """Works on the cache's directory whether or not compiling uses it just now."""
    store = Store(directory(), config.disk_cache_limit)
    if action == "clear":
        return f"deleted {store.clear()} files from {store.directory}"
    usage = store.usage()
    return "\n".join([
        f"directory: {usage.directory}",
        f"compiled graphs: {usage.files}",
        f"size: {usage.bytes / 1e6:.1f} MB of at most {usage.limit / 1e6:.0f} MB",
        f"in use: {'yes' if open_store() is not None else 'no'}",
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `smelt` command."""
    parser = argparse.ArgumentParser(prog="smelt", description="A compiler for PyTorch programs.")
    parser.add_argument("--version", action="version", version=smelt.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, backends, options and log channels")
    cache = commands.add_parser("cache", help="the disk cache of compiled graphs")
    cache.add_argument("action", choices=("info", "clear"), help="say where it is and what it holds, or empty it")
    given = parser.parse_args(arguments)
    print(_cache(given.action) if given.command == "cache" else _info())
    return 0


if __name__ == "__main__":
    sys.exit(main())
