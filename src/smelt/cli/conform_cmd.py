"""`smelt conform NAME`: checks whether a chip fulfils its contract; the checks are in the package `smelt-conform`."""

import argparse
from importlib.util import find_spec

from smelt.cli.example_spec import BadTarget


def add_conform(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the chip: its name in an installed package, or the name to use with --import")
    help_import = "a module that registers the chip, or contains its class"
    parser.add_argument("--import", dest="importing", metavar="MODULE[:CLASS]", help=help_import)
    parser.add_argument("--level", action="append", default=[], help="run only this level; repeat it for several")
    parser.add_argument("--only", action="append", default=[], help="run only checks with these names (* and ? match)")
    parser.add_argument("--json", help="write the results to this file, for CI")
    parser.add_argument("--html", help="write an HTML page to this file")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit per check (default: %(default)g)")
    parser.add_argument("--strict", action="store_true", help="also fail on fallbacks and on missing features")
    parser.add_argument("--no-speed", action="store_true", help="measure no speeds")
    parser.add_argument("--list", action="store_true", help="list the checks without running them")


def do_conform(arguments: argparse.Namespace) -> int:
    if find_spec("smelt_conform") is None:
        raise BadTarget(
            "the checks are not installed; run `pip install smelt-conform`, "
            "or `pip install ./plugins/conform` in smelt's repository"
        )
    from smelt_conform.command import run

    return run(arguments)
