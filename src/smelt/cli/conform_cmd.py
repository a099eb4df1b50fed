"""`smelt conform NAME`: whether a chip does what it must, level by level; exit code 1 if not."""

import argparse
import fnmatch
import json
import sys

import smelt
from smelt.cli.example_spec import BadTarget, Commands


def add_conform(commands: Commands) -> None:
    parser = commands.add_parser(
        "conform",
        help="whether a chip does what smelt needs of it, as a scorecard; exit code 1 if something failed",
        epilog="example: smelt conform sim --html scorecard.html --json scorecard.json",
    )
    parser.add_argument("name", help="the chip: one that an installed package offers, or the name for --import's")
    help_import = "a module that registers the chip, or has its class"
    parser.add_argument("--import", dest="importing", metavar="MODULE[:CLASS]", help=help_import)
    parser.add_argument("--level", action="append", default=[], help="run this level alone; may be given several times")
    parser.add_argument("--only", action="append", default=[], help="run these checks alone: names with * and ?")
    parser.add_argument("--json", help="write what was found there, for CI")
    parser.add_argument("--html", help="write a page there")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of each check (default: %(default)g)")
    parser.add_argument("--strict", action="store_true", help="fail on fallbacks and on what is missing, too")
    parser.add_argument("--no-speed", action="store_true", help="measure no speeds")
    parser.add_argument("--list", action="store_true", help="say what the checks are, and run none")
    parser.set_defaults(do=_conform)


def _conform(given: argparse.Namespace) -> int:
    from smelt.conform.check import Outcome
    from smelt.conform.page import write
    from smelt.conform.processes import conform
    from smelt.conform.scorecard import as_json, passed, scorecard

    checks = _chosen(given)
    if given.list:
        _list(checks)
        return 0

    def tell(outcome: Outcome) -> None:
        print(f"  {outcome.status:8} {outcome.check} ({outcome.seconds:.1f} s)", file=sys.stderr, flush=True)

    found = conform(given.name, smelt.compile, given.importing, checks, given.seconds, not given.no_speed, tell)
    print(scorecard(found, given.strict))
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(as_json(found, given.strict), file, indent=1)
    if given.html:
        write(given.html, found, given.strict)
    return 0 if passed(found, given.strict) else 1


def _chosen(given: argparse.Namespace) -> list[str]:
    from smelt.conform.levels import CHECKS, LEVELS

    names = [level.name for level in LEVELS]
    unknown = [each for each in given.level if each not in names]
    if unknown:
        raise BadTarget(f"there is no level {unknown[0]}; there are {', '.join(names)}")
    checks = [each for each in CHECKS if not given.level or each.partition(".")[0] in given.level]
    absent = [only for only in given.only if not fnmatch.filter(checks, only)]
    if absent:
        among = f" of {', '.join(given.level)}" if given.level else ""
        raise BadTarget(f"no check{among} is called {', '.join(absent)}; smelt conform {given.name} --list names all")
    return [each for each in checks if not given.only or any(fnmatch.fnmatch(each, only) for only in given.only)]


def _list(checks: list[str]) -> None:
    from smelt.conform.levels import CHECKS

    for name in checks:
        print(f"{name:34} {CHECKS[name].proves}")
