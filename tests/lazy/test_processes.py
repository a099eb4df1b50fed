"""Threads and forks: nothing is lost, nothing runs twice."""

import threading

import pytest
import torch

from tests.processes import PLAIN, run


def test_threads_record_one_sequence() -> None:
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        x = torch.full((3,), float(number), device="lazy")
        for step in range(5):
            x = x * 2 + step
            x[0] += 1
        results[number] = x.tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        host = torch.full((3,), float(number))
        for step in range(5):
            host = host * 2 + step
            host[0] += 1
        assert results[number] == host.tolist()


def test_a_backward_on_the_engines_thread_is_part_of_the_sequence() -> None:
    x = torch.ones(3, device="lazy", requires_grad=True)
    y = (x * 2).sum()
    y.backward()
    with torch.no_grad():
        assert x.grad is not None
        x -= x.grad
    assert x.tolist() == [-1.0] * 3


def test_a_forked_process_goes_on_from_what_was_recorded() -> None:
    done = run(
        """
import os
smelt.lazy.enable()
x = torch.ones(3, device="lazy")
print(x.sum().item(), flush=True)
y = x + 1
child = os.fork()
y.add_(10 if child == 0 else 20)
print("child" if child == 0 else "parent", y.tolist(), flush=True)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""
    )
    assert sorted(done.stdout.splitlines()) == ["3.0", "child [12.0, 12.0, 12.0]", "parent [22.0, 22.0, 22.0]"]


FORK_WHILE_COMPILING = """
import os, sys, threading, time
from smelt.base.worker import Worker

worker, begun = Worker("smelt-test"), threading.Event()

def compile():
    begun.set()
    time.sleep(0.5)
    from smelt.codegen.llvm import compile as llvm
    with llvm._lock:
        print("compiled", flush=True)

if sys.argv[1] == "imported":
    import smelt.codegen.llvm.compile
job = worker.submit(compile)
begun.wait()
started = time.perf_counter()
child = os.fork()
if child == 0:
    print("child", job.is_lost or job.is_done, worker.submit(lambda: 3).wait(), flush=True)
    os._exit(0)
assert time.perf_counter() - started < 8, time.perf_counter() - started
os.waitpid(child, 0)
job.wait()
"""


@pytest.mark.parametrize("order", ["imported", "not imported"])
def test_a_fork_takes_locks_in_the_order_of_a_compilation(order: str) -> None:
    done = run(FORK_WHILE_COMPILING, arguments=[order], begin=PLAIN)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert sorted(done.stdout.splitlines()) == ["child True 3", "compiled"]
