"""A thread that compiles in the background: the program may go on meanwhile, or wait for it.

    job = worker.submit(compile)     →     job.is_done, job.wait(), job.result

It is a thread of its own even where somebody waits: the caller may be inside of PyTorch's dispatcher, with modes of the
program's on. A process forks only between two jobs; in the child nobody works at those that were left, and `is_lost`
says so. At the end of a process the job under way is waited for, since a thread must not be inside of native code then,
and others are dropped.
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from smelt.base import locks


class Job:
    """Something to compile, and what it became. What it raises is left to whoever wrote it."""

    def __init__(self, function: Callable[[], Any], worker: "Worker") -> None:
        self._function: Callable[[], Any] | None = function
        self._done = threading.Event()
        self._worker = worker
        self._process = os.getpid()
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def is_lost(self) -> bool:
        """Whether it will never be done: its thread is in another process, or was told to stop."""
        return not self.is_done and (self._process != os.getpid() or self._worker.is_closed)

    def run(self) -> None:
        function, self._function = self._function, None
        assert function is not None
        try:
            self.result = function()
        except BaseException as error:
            self.error = error
        finally:
            self._done.set()

    def wait(self) -> Any:
        """What the job returns or raises. An interruption of the wait leaves the job alone."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.result


class Worker:
    """One thread, which is started with the first job. `name`: of the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Job] = deque()
        self._there = threading.Condition()
        self._working = threading.Lock()
        self._thread: threading.Thread | None = None
        self.is_closed = False
        locks.whole_at_fork(self._working)
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self.close)

    def submit(self, function: Callable[[], Any]) -> Job:
        job = Job(function, self)
        if self.is_closed:  # the process ends: there is no thread any more
            job.run()
            return job
        with self._there:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._there.notify()
        return job

    @property
    def is_ending(self) -> bool:
        """Whether the process ends: jobs fail that need threads of their own."""
        return self.is_closed or not threading.main_thread().is_alive()

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs) or self._working.locked()

    def wait(self) -> None:
        """Until nothing is left to do."""
        job = self.submit(lambda: None)
        job.wait()

    def close(self) -> None:
        """Drop what has not begun, and let the thread end."""
        with self._there:
            self.is_closed = True
            self._jobs.clear()
            self._there.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._there:
                while not self._jobs and not self.is_closed:
                    self._there.wait()
                if self.is_closed:
                    return
                job = self._jobs.popleft()
            with self._working:
                job.run()

    def _in_child(self) -> None:
        self._jobs = deque()
        self._there = threading.Condition()
        self._thread = None
