"""The command line: `smelt run`, `report`, `explain`, `verify`, `bisect`, `bench`, `export`, `conform` and more.

Exit codes: 0 all is well, 1 the answer is no (a result is wrong, a check failed), 2 the command was not understood or
its target could not be loaded. `smelt run` and `smelt report` end as their script does.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import smelt
from smelt.base.errors import SmeltError
from smelt.cli.example_spec import BadTarget

COMMANDS = {  # each with the module that has `add_NAME`
    "run": "run",
    "report": "run",
    "explain": "inspect_cmds",
    "verify": "inspect_cmds",
    "bisect": "inspect_cmds",
    "bench": "inspect_cmds",
    "export": "deploy_cmds",
    "inspect": "deploy_cmds",
    "cc": "deploy_cmds",
    "conform": "conform_cmd",
    "doctor": "maintenance",
    "cache": "maintenance",
    "info": "maintenance",
}
WITHOUT_TORCH = ("inspect", "cc")


def parser() -> argparse.ArgumentParser:
    """All commands with their arguments."""
    top = argparse.ArgumentParser(
        prog="smelt",
        description="A compiler for PyTorch programs.",
        epilog="example: smelt run train.py --epochs 3. Exit codes: 0 all is well; 1 the answer is no (a result is "
        "wrong, a check failed); 2 the command was not understood or its target could not be loaded. smelt run and "
        "smelt report end as their script does.",
    )
    top.add_argument("--version", action="version", version=smelt.__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        if smelt._no_torch is None or name in WITHOUT_TORCH:
            getattr(import_module(f"smelt.cli.{module}"), f"add_{name}")(commands)
        else:
            missing = commands.add_parser(name, help="needs PyTorch, which cannot be imported here", prefix_chars="\0")
            missing.add_argument("rest", nargs="*")
            missing.set_defaults(do=_needs_torch)
    return top


def _needs_torch(args: argparse.Namespace) -> int:
    raise BadTarget(f"this command needs PyTorch, which cannot be imported ({smelt._no_torch}); install torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `smelt` command."""
    parsed = parser().parse_args(arguments)
    own = sys.argv
    try:
        code: int = parsed.do(parsed)
    except (BadTarget, SmeltError) as error:
        print(f"smelt {parsed.command}: {error}", file=sys.stderr)
        return 2
    finally:
        sys.argv = own  # a program was given arguments of its own
    return code


if __name__ == "__main__":
    sys.exit(main())
