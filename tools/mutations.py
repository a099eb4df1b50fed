"""Breaks each package in one place and checks that the quick tier of the tests notices: `make test-mutations`, or

    python tools/mutations.py [fuse ops ...] [--processes 2]

Works on a clone of the last commit, build/mutations, one package at a time. First the tests of the package run; if they
pass, all of the tier. A mutation counts as caught if a test fails that passes without it. The exit code is 1 if one was
not caught.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLONE = ROOT / "build" / "mutations"
SECONDS = 3600  # a mutation may make a test hang


@dataclass(frozen=True)
class Mutation:
    """`old`, which a package contains once, becomes `new`."""

    package: str
    old: str
    new: str

    @property
    def tests(self) -> str:
        return f"tests/{'native' if self.package == 'csrc' else self.package}"

    def find(self) -> Path:
        """The file in the clone that contains the text."""
        files = [path for path in (CLONE / "src" / "smelt" / self.package).rglob("*") if path.suffix in (".py", ".c")]
        counts = {path: path.read_text().count(self.old) for path in files}
        total = sum(counts.values())
        if total != 1:
            sys.exit(f"smelt: tools/mutations.py expects {self.old!r} once in {self.package}, not {total} times")
        return next(path for path, count in counts.items() if count)


MUTATIONS = (
    Mutation("base", "self.left -= 1", "self.left -= 2"),
    Mutation("symbolic", "total = terms.get(monomial, 0) + factor", "total = terms.get(monomial, 0) - factor"),
    Mutation("csrc", "words[i] != expected[i]", "words[i] < expected[i]"),
    Mutation("device", "generator.set_state(state)", "state.clone()"),
    Mutation("ir", "return self.numel * self.dtype.itemsize", "return self.numel * 4"),
    Mutation("torch_abi", "kwargs.get(name, default)", "default"),
    Mutation("meta", "return dtype if dtype in FLOATS else torch.int64", "return dtype"),
    Mutation("dispatch", "(1 + (step - 1) * lr_decay)", "(1 + step * lr_decay)"),
    Mutation("runtime", "stride, begin + offset", "stride, begin"),
    Mutation("ops", 'blocked = _compared(e, "le", x, threshold)', 'blocked = _compared(e, "lt", x, threshold)'),
    Mutation("capture", "before[dim] != size", "before[dim] < size"),
    Mutation("lazy", "begin < other_end and other_begin < end", "begin < other_end and other_begin > end"),
    Mutation("autograd", "(end, start, 0)", "(end, start, capacity)"),
    Mutation("simplify", "sorted(args, key=lambda each: repr(as_key(each)))", "args"),
    Mutation("fuse", "if block[2] >= step", "if block[2] > step"),
    Mutation("codegen", "(self.along.size + self.width - 1) // self.width", "self.along.size // self.width"),
    Mutation("pipeline", "better = now < before", "better = now > before"),
    Mutation("deploy", "last < lives[each.name][0]", "last <= lives[each.name][0]"),
    Mutation("explain", "(reads(step), writes(step))", "(reads(step),)"),
    Mutation("chips", "of * scale) for", "of) for"),
)


def pytest(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of tests of the clone."""
    environment = {**os.environ, "PYTHONPATH": str(CLONE / "src")}
    command = (sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", *arguments)
    try:
        done = subprocess.run(command, cwd=CLONE, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return 0, ""
    return done.returncode, done.stdout


def make_clone() -> None:
    """The last commit, with the C part that is built here."""
    shutil.rmtree(CLONE, ignore_errors=True)
    CLONE.parent.mkdir(exist_ok=True)
    subprocess.run(("git", "clone", "-q", "--local", ROOT, CLONE), check=True)
    for path in (ROOT / "src" / "smelt").rglob("*"):
        if path.suffix in (".so", ".a"):
            target = CLONE / path.relative_to(ROOT)
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(path, target)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    if path.suffix == ".c":
        subprocess.run((sys.executable, "setup.py", "-q", "build_ext", "--inplace"), cwd=CLONE, check=True)


def caught_by(mutation: Mutation, processes: str) -> str | None:
    """The first test that fails for a mutation alone; None if the quick tier passes."""
    path = mutation.find()
    text = path.read_text()
    write(path, text.replace(mutation.old, mutation.new))
    try:
        failed = first_failure(mutation, ("--tier", "quick", "-x", "-n", processes, "--dist", "worksteal"))
    finally:
        write(path, text)
    if failed is None:
        return None
    code, output = pytest("-n0", failed)
    if code:
        sys.exit(f"smelt: {failed} fails without a mutation, too:\n{output}")
    return failed


def first_failure(mutation: Mutation, tier: tuple[str, ...]) -> str | None:
    chips = [] if mutation.package == "chips" else ["tests/chips"]
    for folders in ([mutation.tests], [], chips):
        _, output = pytest(*tier, *folders)
        if names := re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, flags=re.MULTILINE):
            return str(names[0])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/mutations.py", description="does the quick tier notice what breaks?")
    parser.add_argument("packages", nargs="*", choices=[[], *(each.package for each in MUTATIONS)], help="which (all)")
    parser.add_argument("--processes", default="auto", help="how many run tests at a time (one per core)")
    chosen = parser.parse_args()
    make_clone()
    mutations = [each for each in MUTATIONS if each.package in (chosen.packages or [each.package])]
    missed = 0
    for mutation in mutations:
        test = caught_by(mutation, chosen.processes)
        missed += test is None
        print(f"smelt: {mutation.package}: {'NOT CAUGHT' if test is None else f'caught by {test}'}", flush=True)
    print(f"smelt: {len(mutations) - missed} of {len(mutations)} mutations were caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
