"""Runs `smelt conform`: parsed arguments → a scorecard, a page and a JSON file; exit code 1 if a check failed."""

import argparse
import fnmatch
import json
import sys

import smelt
from smelt.cli.example_spec import BadTarget
from smelt_conform.check import Outcome
from smelt_conform.levels import CHECKS, LEVELS
from smelt_conform.page import write
from smelt_conform.processes import conform
from smelt_conform.scorecard import as_json, passed, scorecard


def run(arguments: argparse.Namespace) -> int:
    checks = _chosen_checks(arguments)
    if arguments.list:
        for name in checks:
            print(f"{name:34} {CHECKS[name].proves}")
        return 0
    report = conform(
        arguments.name,
        smelt.compile,
        arguments.importing,
        checks,
        arguments.seconds,
        not arguments.no_speed,
        _print_outcome,
    )
    print(scorecard(report, arguments.strict))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(as_json(report, arguments.strict), file, indent=1)
    if arguments.html:
        write(arguments.html, report, arguments.strict)
    return 0 if passed(report, arguments.strict) else 1


def _print_outcome(outcome: Outcome) -> None:
    print(f"  {outcome.status:8} {outcome.check} ({outcome.seconds:.1f} s)", file=sys.stderr, flush=True)


def _chosen_checks(arguments: argparse.Namespace) -> list[str]:
    """Names of the checks that --level and --only select, in order."""
    level_names = [level.name for level in LEVELS]
    unknown = [name for name in arguments.level if name not in level_names]
    if unknown:
        raise BadTarget(f"there is no level {unknown[0]}; there are {', '.join(level_names)}")
    checks = [name for name in CHECKS if not arguments.level or name.partition(".")[0] in arguments.level]
    unmatched = [pattern for pattern in arguments.only if not fnmatch.filter(checks, pattern)]
    if unmatched:
        among = f" of {', '.join(arguments.level)}" if arguments.level else ""
        raise BadTarget(
            f"no check{among} is called {', '.join(unmatched)}; smelt conform {arguments.name} --list names all"
        )
    if not arguments.only:
        return checks
    return [name for name in checks if any(fnmatch.fnmatch(name, pattern) for pattern in arguments.only)]
