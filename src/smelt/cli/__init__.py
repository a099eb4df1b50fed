"""The command line: `smelt run`, `report`, `explain`, `verify`, `bisect`, `bench`, `export`, `chat`, and more.

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

# By name: the module with its `do_NAME` (and `add_NAME`, if it takes arguments), its help, an example.
COMMANDS = {
    "run": ("run", "run a script with its models compiled, without editing it", "train.py --epochs 3"),
    "report": (
        "run",
        "run a script compiled, and write a page that shows what the compiler did",
        "--profile --out report.html train.py --epochs 1",
    ),
    "explain": (
        "inspect_cmds",
        "what the compiler does with a program, and what to change in it; more on request",
        "train.py:example",
    ),
    "verify": (
        "inspect_cmds",
        "whether every backend agrees with eager, forward and gradients; exit code 1 if not",
        "train.py:example",
    ),
    "bisect": (
        "inspect_cmds",
        "find the rewrite that makes a result wrong, and write a small program that shows it; then exit code 1",
        "train.py:example --out repro.py",
    ),
    "bench": ("inspect_cmds", "how fast a program runs compiled, compared with eager", "train.py:example --backward"),
    "export": (
        "deploy_cmds",
        "write a program to one file that runs without Python",
        "job.py:example -o model.smelt --dynamic x:0=batch:1:64",
    ),
    "inspect": ("deploy_cmds", "what an artifact takes and returns, its states, memory and code", "model.smelt"),
    "chat": ("chat_cmd", "generate text with a file of smelt.export_generation, in a terminal", "llama.smelt"),
    "cc": (
        "deploy_cmds",
        "the flags that build a C or C++ program against the runtime",
        "--static, in a build: cc infer.c $(smelt cc) -o infer",
    ),
    "profile": (
        "profile_cmd",
        "how long each kernel of an artifact takes, as a table, and as a trace that ui.perfetto.dev opens",
        "model.smelt --size batch=8 --out trace.json",
    ),
    "keygen": ("trust_cmds", "make a pair of Ed25519 keys to sign files with", "release"),
    "sign": ("trust_cmds", "sign an artifact, so that others can require your key", "model.smelt --key release.key"),
    "verify-file": (
        "trust_cmds",
        "whether an artifact is whole, and signed by a trusted key; exit code 1 if not",
        "model.smelt --key release.pub",
    ),
    "conform": (
        "conform_cmd",
        "check whether a chip does what smelt needs, as a scorecard; exit code 1 if a check failed",
        "sim --html scorecard.html --json scorecard.json",
    ),
    "doctor": (
        "maintenance",
        "whether everything needed is there, by a small model compiled and checked; exit code 1 if not",
        "--calibrate",
    ),
    "cache": ("maintenance", "the disk cache of compiled graphs", "info"),
    "info": (
        "maintenance",
        "versions, backends, options and log channels; `smelt info stages`: every step of the compiler",
        "stages",
    ),
}
WITHOUT_TORCH = ("inspect", "profile", "cc", "keygen", "sign", "verify-file")


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
    for name, (module_name, text, example) in COMMANDS.items():
        if smelt._no_torch is None or name in WITHOUT_TORCH:
            module = import_module(f"smelt.cli.{module_name}")
            command = commands.add_parser(name, help=text, epilog=f"example: smelt {name} {example}".rstrip())
            function = name.replace("-", "_")
            getattr(module, f"add_{function}", lambda _: None)(command)
            command.set_defaults(do=getattr(module, f"do_{function}"))
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
