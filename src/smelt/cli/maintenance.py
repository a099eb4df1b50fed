"""Commands about the installation: `smelt doctor`, `cache`, `info`."""

import argparse
import platform

import torch

import smelt
from smelt.base.events import CHANNELS
from smelt.base.options import ENVIRONMENT, Config, Options, config, describe
from smelt.explain.doctor import examine
from smelt.runtime.cache import CacheStore, directory, open_store


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="first measure products, convolutions and attention by kernels and by PyTorch's library, for 10 seconds; "
        "later compilations choose by what was measured",
    )


def do_doctor(args: argparse.Namespace) -> int:
    healthy = True
    if args.calibrate:
        from smelt.explain.calibration_report import report
        from smelt.pipeline.calibration.calibrate import calibrate

        print("\n".join(report(calibrate())))
    for check in examine(smelt.compile):
        healthy = healthy and check.good is not False
        print(check)
    print("all is well" if healthy else "something is missing: see the lines marked FAIL")
    return 0 if healthy else 1


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("info", "clear"), help="say where it is and what it holds, or empty it")


def do_cache(args: argparse.Namespace) -> int:
    """Works on the cache's directory whether or not compiling uses it just now."""
    store = CacheStore(directory(), config.disk_cache_limit)
    if args.action == "clear":
        print(f"deleted {store.clear()} files from {store.directory}")
        return 0
    usage = store.usage()
    print(f"directory: {usage.directory}")
    print(f"graphs and captures: {usage.files}")
    print(f"size: {usage.bytes / 1e6:.1f} MB of at most {usage.limit / 1e6:.0f} MB")
    print(f"in use: {'yes' if open_store() is not None else 'no'}")
    return 0


def add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("stages",), help="stages: the steps a graph goes through, in order")


def do_info(args: argparse.Namespace) -> int:
    if args.what == "stages":
        from smelt.pipeline.stage_map import stage_map

        print(stage_map())
        return 0
    print(f"smelt {smelt.__version__}, torch {torch.__version__}")
    print(f"Python {platform.python_version()} on {platform.machine()}")
    print(f"threads: {torch.get_num_threads()}")
    print("backends: " + ", ".join(smelt.list_backends()))
    print("log channels (SMELT_LOGS=…):")
    for name, text in CHANNELS.items():
        print(f"  {name:20} {text}")
    for title, kind in (("options of smelt.compile(options={…}):", Options), ("settings of smelt.config:", Config)):
        print(title)
        for name, default, doc in describe(kind):
            print(f"  {name:20} {doc} (default {default!r})")
    print("environment variables:")
    for name, text in ENVIRONMENT.items():
        print(f"  {name:20} {text}")
    return 0
