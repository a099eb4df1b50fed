"""Streams and events of our device, which has one stream: `torch.<name>.Stream`, `torch.<name>.Event`.

    start, end = torch.lazy.Event(enable_timing=True), torch.lazy.Event(enable_timing=True)
    start.record(); work(); end.record(); end.synchronize(); print(start.elapsed_time(end))

`torch.Stream` and `torch.Event` need C++ functions, which a device written in Python does not have.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any


class DeviceStream:
    """The only stream: work runs in order."""

    stream_id = 0

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def synchronize(self) -> None:
        self._wait()

    def query(self) -> bool:
        """Waits for all work, so it is always True."""
        self._wait()
        return True

    def wait_event(self, event: "DeviceEvent") -> None:
        """Nothing to do: later work waits anyway."""

    def wait_stream(self, stream: "DeviceStream") -> None:
        """Nothing to do: later work waits anyway."""

    def record_event(self, event: "DeviceEvent | None" = None) -> "DeviceEvent":
        event = event or DeviceEvent(self._wait)
        event.record(self)
        return event

    def __enter__(self) -> "DeviceStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """There is no other stream to go back to."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceStream)

    def __hash__(self) -> int:
        return hash(DeviceStream)


class DeviceEvent:
    """A point in the program's work. An event with timing waits for all earlier work."""

    def __init__(self, wait: Callable[[], None], enable_timing: bool = False, **_: Any) -> None:
        self._wait = wait
        self._timing = enable_timing
        self._time: float | None = None

    def record(self, stream: DeviceStream | None = None) -> None:
        if self._timing:
            self._wait()
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        self._wait()

    def wait(self, stream: DeviceStream | None = None) -> None:
        """Nothing to do: later work waits anyway."""

    def query(self) -> bool:
        """Waits for all earlier work, so it is always True."""
        if self._time is not None:
            self._wait()
        return True

    def elapsed_time(self, end: "DeviceEvent") -> float:
        """Milliseconds from this event to `end`."""
        if not (self._timing and end._timing):
            raise ValueError("both events must be created with enable_timing=True to calculate elapsed time")
        if self._time is None or end._time is None:
            raise ValueError("both events must be recorded before calculating elapsed time")
        return (end._time - self._time) * 1000
