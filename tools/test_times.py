"""Writes tests/slow_tests.txt, which the quick tier leaves out, from processor times: `make test-times`, or

    python tools/test_times.py build/times.txt      which `pytest --cpu-times build/times.txt` has written

A function is slow if its cases take half a second or more on average. Of other functions, cases above two seconds are.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

TABLE = Path(__file__).parents[1] / "tests" / "slow_tests.txt"
SLOW_FUNCTION_SECONDS = 0.5
SLOW_CASE_SECONDS = 2.0

HEAD = """\
# Tests that the quick tier leaves out (tests/tiers.py): seconds of processor time per case, and the test.
# `make test-times` measures all tests and writes this file.
"""


def slow(times: dict[str, float]) -> dict[str, float]:
    """Seconds per case of slow functions, and of slow cases of the others."""
    functions: dict[str, dict[str, float]] = defaultdict(dict)
    for test, seconds in times.items():
        functions[test.partition("[")[0]][test] = seconds
    table: dict[str, float] = {}
    for function, cases in functions.items():
        average = mean(cases.values())
        if average >= SLOW_FUNCTION_SECONDS:
            table[function] = average
        else:
            table |= {test: seconds for test, seconds in cases.items() if seconds >= SLOW_CASE_SECONDS}
    return table


def main(file: str) -> None:
    lines = (line.split("\t", 1) for line in Path(file).read_text().splitlines())
    times = {test: float(seconds) for seconds, test in lines}
    table = slow(times)
    TABLE.write_text(HEAD + "".join(f"{table[test]:7.1f}  {test}\n" for test in sorted(table)))
    print(f"smelt: {len(times)} tests took {sum(times.values()) / 60:.0f} minutes of one core")
    print(f"smelt: {TABLE.relative_to(Path.cwd())} lists {len(table)} slow functions and cases")


if __name__ == "__main__":
    main(sys.argv[1])
