"""Ctrl-C, threads and forks in the middle of something: nothing is lost, nothing runs twice."""

import pytest

from tests.processes import run

# Records writes to `x`, and has SIGINT sent while they run or while their program is compiled.
SCRIPT = """
import os, signal, threading, time
smelt.lazy.enable(background={background})
x = torch.zeros(2000, device="lazy")
smelt.lazy.step()
written, interrupted = 0, 0

def send(after):
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGINT)

for number in range(12):
    for _ in range(number + 2):
        x.add_(1)
        written += 1
    y = x.sin() * number
    thread = threading.Thread(target=send, args=(0.0005 * number ** 2,))
    try:
        thread.start()
        smelt.lazy.step()
        thread.join()
        time.sleep(0.001)
    except KeyboardInterrupt:
        interrupted += 1
    while True:
        try:
            thread.join()
            break
        except KeyboardInterrupt:
            interrupted += 1
    torch.testing.assert_close(y.cpu(), torch.full((2000,), float(written)).sin() * number)
    assert x.tolist() == [float(written)] * 2000, (x[0], written)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(interrupted)
"""


@pytest.mark.parametrize("background", [False, True])
def test_interruptions_while_it_runs_or_is_compiled(background: bool) -> None:
    done = run(SCRIPT.format(background=background), seconds=200)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 12


def test_an_interruption_between_two_operators_waits_for_the_last() -> None:
    done = run(
        """
import os, signal
import smelt.lazy.runs as runs
smelt.lazy.enable(background=True)
x = torch.zeros(3, device="lazy")
smelt.lazy.step()
replayed = runs.PathProgram.replayed
def interrupted(self, *args):
    os.kill(os.getpid(), signal.SIGINT)
    return replayed(self, *args)
runs.PathProgram.replayed = interrupted
x += 1
y = x * 3
try:
    smelt.lazy.step()
    print("not interrupted")
except KeyboardInterrupt:
    runs.PathProgram.replayed = replayed
    print(x.tolist(), y.tolist())
x += 1
print(x.tolist())
"""
    )
    assert done.stdout.splitlines() == ["[1.0, 1.0, 1.0] [3.0, 3.0, 3.0]", "[2.0, 2.0, 2.0]"], done.stderr


def test_one_who_insists_loses_what_was_not_computed_and_is_told_so() -> None:
    done = run(
        """
import os, signal
import smelt.lazy.runs as runs
smelt.lazy.enable(background=True)
x = torch.zeros(3, device="lazy")
smelt.lazy.step()
def interrupted(self, *args):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
replayed, runs.PathProgram.replayed = runs.PathProgram.replayed, interrupted
y = x + 3
try:
    smelt.lazy.step()
except KeyboardInterrupt:
    print("interrupted")
runs.PathProgram.replayed = replayed
try:
    y.tolist()
except RuntimeError as error:
    print(str(error).partition(":")[0])
print((x + 1).tolist(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
""",
        seconds=60,
    )
    expected = ["interrupted", "this value was not computed", "[1.0, 1.0, 1.0] True"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_threads_that_write_one_tensor() -> None:
    done = run(
        """
import threading
smelt.lazy.enable()
x = torch.zeros(8, device="lazy")
values = []

def work(number):
    for count in range(60):
        x[number].add_(1)
        if count % 20 == number:
            values.append(x[number].item() == count + 1)
    with smelt.lazy():
        host = torch.ones(3) * number
        host += 1
    values.append(host.tolist() == [number + 1.0] * 3)

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(x.tolist() == [60.0] * 8, all(values), len(values))
""",
        seconds=200,
    )
    assert done.stdout.split() == ["True", "True", "32"], done.stderr


def test_a_fork_in_a_block() -> None:
    done = run(
        """
import os
x = torch.ones(3)
with smelt.lazy():
    y = x + 1
    child = os.fork()
    y += 10 if child == 0 else 20
    if child == 0:
        print(y.tolist(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(y.tolist(), flush=True)
""",
        seconds=100,
    )
    assert done.stdout.splitlines() == ["[12.0, 12.0, 12.0]", "[22.0, 22.0, 22.0]"], done.stderr
