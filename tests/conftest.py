"""Shared by all tests: the `--update-golden` switch, `tests.*` importable from any test folder, and no disk cache.

What an earlier run left on the disk must not be what is tested; the tests of the cache switch it on, each in its own
directory. Several processes may run the tests at once (pytest-xdist): they and later runs share what LLVM made of a
text.
"""

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that `from tests.golden import golden` works everywhere

from tests import cpu_times, shared_kernels, skips, targets, tiers
from tests import golden as golden_module

os.environ["SMELT_CACHE"] = "0"
for _name in ("SMELT_CACHE_DIR", "SMELT_LOGS", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)  # what is printed does not depend on who runs the tests

from smelt.base.options import config as smelt_config  # noqa: E402
from smelt.dispatch import device  # noqa: E402
from tests.simt_host import offer  # noqa: E402, F401  # the target "simt-host"

smelt_config.leave_slow_code = False  # what runs compiled does not depend on how fast the machine is
device.reserve()  # before any test runs a backward: autograd's engine starts its threads with the first

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads that wait for work sleep rather than spin: other processes of the tests want the processors.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ from what is printed now")
    parser.addoption("--device", help="where tensors are that tests make without saying where: cuda")
    parser.addoption("--target", help="what kernels on the host's tensors are made for: simt-host, for GPU schedules")
    parser.addoption("--tier", choices=("quick", "all"), default="all", help="quick: what make test runs")
    parser.addoption("--part", default="1/1", help="2/5: of the tests every fifth, from the second on")
    parser.addoption("--cpu-times", help="a file that gets the processor time of each test")
    parser.addoption("--sharing", type=int, help="so many processes run tests on the same GPU at once")


def pytest_configure(config: pytest.Config) -> None:
    golden_module.updating = bool(config.getoption("--update-golden"))
    processes = config.getoption("--sharing") or int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    targets.use(config.getoption("--device"), config.getoption("--target"), processes)
    if times := config.getoption("--cpu-times"):
        config.pluginmanager.register(cpu_times.CpuTimes(times))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[shared_kernels.FOLDER] = str(shared_kernels.begin(getattr(config, "cache", None)))
        if config.getoption("--tier") == "quick":
            os.environ[tiers.UNITS] = " ".join(sorted(tiers.changed_units(tiers.ROOT)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests of chips only where they are asked for: a process has one device that is not PyTorch's, and most tests'
    processes have that of lazy tensors."""
    chips = Path(__file__).parent / "chips"
    asked = (Path(str(each).partition("::")[0]).resolve() for each in config.args)
    return True if collection_path == chips and not any(each.is_relative_to(chips) for each in asked) else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shared_kernels.end(Path(os.environ.pop(shared_kernels.FOLDER)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there before the first test stays: the collector need not walk through PyTorch and ten thousand tests
    whenever a test has made some objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # after `-m 'not slow'`: what that leaves out must not stand for its file
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, parts = map(int, str(config.getoption("--part")).split("/"))
    chosen = items[number - 1 :: parts]
    if config.getoption("--tier") == "quick":
        chosen = tiers.choose(chosen, set(os.environ[tiers.UNITS].split()))
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    why = targets.why_dead() if targets.chosen[0] != targets.HOST else None
    if why is not None:  # none of the tests that are left would say anything
        pytest.exit(f"since the test before {item.nodeid} nothing runs on the GPU any more: {why}", returncode=3)
    shared_kernels.share(Path(os.environ[shared_kernels.FOLDER]))
    for name in ("torch.cuda", "torch.mtia", "torch.xpu"):
        if name in sys.modules:
            sys.modules[name].traceback = _NoStack  # type: ignore[attr-defined]


class _NoStack:
    """What `torch.manual_seed` asks for the lines of the whole stack, at each call, for each device that is not there:
    a millisecond under pytest, where tests seed thousands of times."""

    @staticmethod
    def format_stack() -> list[str]:
        return []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips.tell(terminalreporter)
    if terminalreporter.config.getoption("--tier") == "quick":
        terminalreporter.write_line("This was the quick tier; `make test-all` runs every test.")
