"""Events: channels are checked, printing is by choice, collecting is per thread and nests, counters count."""

import threading
from collections.abc import Iterator

import pytest

from smelt.base import events
from smelt.base.errors import SmeltError
from tests.processes import run, run_new


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = events._printed
    events.set_printed("")
    yield
    events._printed = before


def test_channels_are_parsed() -> None:
    assert events.parse_channels("") == frozenset()
    assert events.parse_channels(" graph, kernels,") == {"graph", "kernels"}
    assert events.parse_channels("all") == frozenset(events.CHANNELS)


def test_unknown_channel_names_every_choice() -> None:
    with pytest.raises(SmeltError, match="no channel 'graf'") as caught:
        events.parse_channels("graf")
    assert caught.value.code == "SM003"
    assert all(name in caught.value.hint for name in events.CHANNELS)


def test_only_chosen_channels_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    events.set_printed("breaks")
    events.emit("breaks", "one")
    events.emit("guards", "two")
    captured = capsys.readouterr()
    assert captured.err == "[smelt breaks] one\n"
    assert captured.out == ""


def test_emitting_to_an_unknown_channel_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="nosuch"):
        events.emit("nosuch", "x")


def test_collect_sees_every_channel_and_nests() -> None:
    with events.collect() as outer:
        events.emit("graph", "a", 1)
        with events.collect() as inner:
            events.emit("guards", "b")
        events.emit("breaks", "c")
    events.emit("graph", "after")
    assert [event.text for event in outer] == ["a", "b", "c"]
    assert inner == [events.Event("guards", "b")]
    assert outer[0].subject == 1


def test_nested_collectors_with_equal_contents_end_separately() -> None:
    with events.collect() as outer:
        with events.collect() as inner:
            pass
        events.emit("graph", "late")
    assert inner == []
    assert [event.text for event in outer] == ["late"]


def test_collect_ends_on_an_exception() -> None:
    with pytest.raises(ValueError, match="stop"), events.collect() as seen:
        raise ValueError("stop")
    events.emit("graph", "later")
    assert seen == []
    assert not events.wanted("graph")


def test_wanted_follows_printing_and_collecting() -> None:
    assert not events.wanted("llvm")
    events.set_printed("llvm")
    assert events.wanted("llvm") and not events.wanted("asm")
    with events.collect():
        assert events.wanted("asm")


def test_another_thread_is_not_collected() -> None:
    with events.collect() as seen:
        thread = threading.Thread(target=events.emit, args=("graph", "elsewhere"))
        thread.start()
        thread.join()
    assert seen == []


def test_counters_add_up() -> None:
    name = "tests.base.test_events"
    events.count(name)
    events.count(name, 2)
    assert events.counters.pop(name) == 3


def test_the_environment_chooses_channels_at_start() -> None:
    script = "from smelt.base import events; events.emit('joint', 'hello')"
    done = run(script, begin="import torch", environment={"SMELT_LOGS": "joint"})
    assert done.stderr == "[smelt joint] hello\n"


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [("", set()), ("help", set()), ("graf", set()), ("graf,guards", {"guards"}), ("help,breaks", {"breaks"})],
)
def test_at_start_a_wrong_name_is_told_and_the_rest_counts(
    asked: str, chosen: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert events.channels_at_start(asked) == chosen
    told = capsys.readouterr().err
    assert ("no channel 'graf'" in told) is ("graf" in asked)
    assert all(name in told for name in events.CHANNELS) is (asked != "")


def test_all_at_start_is_every_channel() -> None:
    assert events.channels_at_start("all") == events.channels_at_start("all,graph") == frozenset(events.CHANNELS)


@pytest.mark.parametrize("asked", ["help", "graf"])
def test_an_import_survives_what_the_logs_are_asked_for(asked: str) -> None:
    done = run_new("import smelt; print('imported')", environment={"SMELT_LOGS": asked})
    assert done.stdout == "imported\n" and "Traceback" not in done.stderr and "recompiles" in done.stderr
