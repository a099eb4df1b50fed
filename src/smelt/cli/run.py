"""`smelt run script.py`: a script as it is, with what it runs compiled.

    python train.py --epochs 3      →      smelt run train.py --epochs 3

Every outermost call of an `nn.Module` runs compiled, and `torch.compile` in the script means `smelt.compile`.
"""

import argparse
import os
import runpy
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

import smelt
from smelt.base.events import counters
from smelt.capture.calls.dispatch import CALLABLES, calls_instead
from smelt.cli.example_spec import BadTarget

_REPLACED = "compile"  # of torch: here it only gets another function


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", default="llvm", help="backend of smelt.compile (default: llvm)")
    parser.add_argument("--quiet", action="store_true", help="do not say at the end what was compiled")
    parser.add_argument("script", help="the script; what follows it are its own arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def do_run(args: argparse.Namespace) -> int:
    _must_exist(args.script)
    try:
        run_script(args.script, args.arguments, args.backend)
    finally:
        if not args.quiet:
            print(f"smelt: {_summary()}", file=sys.stderr)
    return 0


def _must_exist(script: str) -> None:
    if not os.path.exists(script):
        raise BadTarget(f"there is no file {script}")


def run_script(script: str, arguments: Sequence[str], backend: str) -> None:
    """Run a script as `python` would, with what it runs compiled."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    with compiling_everything(backend):
        runpy.run_path(script, run_name="__main__")


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="smelt_report.html", help="where the page is written (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="time every kernel and library call, too")
    parser.add_argument("--backend", default="llvm", help="backend of smelt.compile (default: llvm)")
    parser.add_argument("script", help="the script; what follows it are its own arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def do_report(args: argparse.Namespace) -> int:
    _must_exist(args.script)
    try:
        with smelt.record(args.out, os.path.basename(args.script), profile=args.profile):
            run_script(args.script, args.arguments, args.backend)
    finally:
        print(f"smelt: {_summary()}; written to {args.out}", file=sys.stderr)
    return 0


def _summary() -> str:
    names = (("graphs", "graphs"), ("kernels", "kernels"), ("graph_breaks", "breaks"), ("recompiles", "recompiles"))
    return ", ".join(f"{counters[name]} {word}" for name, word in names) + f" in {counters['calls']} compiled calls"


class _Depth(threading.local):
    inside = 0  # how many module calls this thread is in


class compiling_everything:
    """While it lasts, outermost module calls are compiled, and `torch.compile` is `smelt.compile`."""

    def __init__(self, backend: str = "llvm") -> None:
        self._backend = backend
        self._compiled: weakref.WeakKeyDictionary[torch.nn.Module, Callable[..., Any]] = weakref.WeakKeyDictionary()
        self._depth = _Depth()

    def __enter__(self) -> None:
        self._call = torch.nn.Module.__call__
        self._compile = getattr(torch, _REPLACED)
        self._calling = self._outermost()
        CALLABLES[self._calling] = calls_instead(self._call)
        torch.nn.Module.__call__ = self._calling  # type: ignore[method-assign]
        setattr(torch, _REPLACED, self._instead)

    def __exit__(self, *error: object) -> None:
        torch.nn.Module.__call__ = self._call  # type: ignore[method-assign]
        del CALLABLES[self._calling]
        setattr(torch, _REPLACED, self._compile)

    def _outermost(self) -> Callable[..., Any]:
        original, depth, compiled = self._call, self._depth, self._compiled

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if depth.inside or hasattr(module, "_smelt_region"):
                return original(module, *args, **kwargs)
            depth.inside += 1
            try:
                if module not in compiled:
                    compiled[module] = smelt.compile(original.__get__(module), backend=self._backend)
                return compiled[module](*args, **kwargs)
            finally:
                depth.inside -= 1

        return call

    def _instead(
        self,
        model: Callable[..., Any] | None = None,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        disable: bool = False,
        **settings: Any,
    ) -> Any:
        """Takes all arguments of the function it stands for; the choice of backend, mode and options is ours."""
        return smelt.compile(model, fullgraph=fullgraph, dynamic=dynamic, disable=disable, backend=self._backend)
