"""The collector is off inside a burst and back as it was afterwards, whatever happens inside."""

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from smelt._native import PausedGC as paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_inside_and_on_after() -> None:
    with paused():
        assert not gc.isenabled()
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_turns_it_on_again() -> None:
    with pytest.raises(ValueError), paused():
        raise ValueError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()


def test_what_is_made_while_modules_are_loaded_is_old_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(modules: tuple[str, ...]) -> bool:
        with paused():
            made: list[object] = [[]]
            for name in modules:
                monkeypatch.setitem(sys.modules, name, sys)
            gc.set_threshold(0)  # whoever turns it on again finds it idle, so that the generations can be looked at
        return any(each is made for each in gc.get_objects(generation=2))

    thresholds = gc.get_threshold()
    gc.unfreeze()  # what was there before the first test is frozen
    try:
        assert not burst(())
        assert burst(("smelt_test_module",))
        gc.freeze()
        assert not burst(("smelt_test_module_2",)) and gc.get_freeze_count()
    finally:
        gc.set_threshold(*thresholds)


def test_bursts_of_several_threads_end_with_the_last() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with paused():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with paused():
        thread.start()
        assert inside.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
