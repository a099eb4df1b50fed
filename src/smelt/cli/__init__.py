"""The command line: `smelt run`, `report`, `explain`, `verify`, `bisect`, `bench`, `export`, `conform` and more.

Exit codes: 0 all is well, 1 the answer is no (a result is wrong, a check failed), 2 the command was not understood or
its target could not be loaded. `smelt run` and `smelt report` end as their script does.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import smelt
from smelt.base.errors import SmeltError
from smelt.cli import conform_cmd, deploy_cmds, inspect_cmds, maintenance, run
from smelt.cli.example_spec import BadTarget

COMMANDS: tuple[Callable[..., None], ...] = (
    run.add_run,
    run.add_report,
    inspect_cmds.add_explain,
    inspect_cmds.add_verify,
    inspect_cmds.add_bisect,
    inspect_cmds.add_bench,
    deploy_cmds.add_export,
    deploy_cmds.add_inspect,
    deploy_cmds.add_cc,
    conform_cmd.add_conform,
    maintenance.add_doctor,
    maintenance.add_cache,
    maintenance.add_info,
)


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
    for add in COMMANDS:
        add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `smelt` command."""
    given = parser().parse_args(arguments)
    own = sys.argv
    try:
        code: int = given.do(given)
    except (BadTarget, SmeltError) as error:
        print(f"smelt {given.command}: {error}", file=sys.stderr)
        return 2
    finally:
        sys.argv = own  # a program was given arguments of its own
    return code


if __name__ == "__main__":
    sys.exit(main())
