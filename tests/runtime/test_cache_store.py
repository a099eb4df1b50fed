"""The disk cache as a store of files: nothing that happens to a file, a disk or a process yields a wrong answer."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.base.options import config
from smelt.ir.artifact_file.container import ArtifactError, Section, manifest_section
from smelt.ir.artifact_file.container import pack as pack_sections
from smelt.ir.artifact_file.layout import Kind
from smelt.ir.artifact_file.write import write
from smelt.runtime import cache
from smelt.runtime.cache import CacheFile, CacheStore, file_bytes, read_file
from tests import processes
from tests.ir.artifact_file.example import artifact
from tests.processes import Started

STORED = CacheFile(
    {"program": ["\udcff", {}, None]},
    (Section.of(Kind.TABLE, bytes(range(256)) * 3), Section.of(Kind.CODE, b"", target=3), Section.of(Kind.CODE, b"x")),
)


def numbered(number: int) -> CacheFile:
    return CacheFile({"number": number})


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    return CacheStore(tmp_path / "cache", 1 << 20)


def test_what_was_put_is_got(store: CacheStore) -> None:
    assert store.get("key") is None
    assert store.put("key", STORED)
    assert store.get("key") == STORED
    assert store.get("another key") is None


def test_a_later_put_replaces_an_earlier_one(store: CacheStore) -> None:
    store.put("key", numbered(1))
    store.put("key", numbered(2))
    assert store.get("key") == numbered(2)
    assert store.usage().files == 1


def test_only_the_owner_may_read_or_write(store: CacheStore) -> None:
    store.put("key", STORED)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(store.path("key").stat().st_mode) == 0o600


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_contents_with_any_bit_flipped_are_refused(data: st.DataObject) -> None:
    contents = bytearray(file_bytes("key", STORED))
    bit = data.draw(st.integers(0, 8 * len(contents) - 1))
    contents[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ArtifactError):
        read_file(bytes(contents), "key")


def test_contents_with_any_byte_changed_are_refused() -> None:
    """Header, directory, sections, and what is between them."""
    contents = bytearray(file_bytes("key", STORED))
    assert read_file(bytes(contents), "key") == STORED
    for place in range(len(contents)):
        contents[place] ^= 0xA5
        with pytest.raises(ArtifactError):
            read_file(bytes(contents), "key")
        contents[place] ^= 0xA5


def test_contents_cut_short_anywhere_or_with_more_behind_are_refused() -> None:
    contents = file_bytes("key", STORED)
    for length in range(len(contents)):
        with pytest.raises(ArtifactError):
            read_file(contents[:length], "key")
    with pytest.raises(ArtifactError):
        read_file(contents + b"\0", "key")


@settings(max_examples=100, deadline=None)
@given(st.text(), st.lists(st.binary(max_size=100), max_size=8), st.text())
def test_contents_are_for_their_key_alone(key: str, parts: list[bytes], other: str) -> None:
    stored = CacheFile({"values": other}, tuple(Section.of(Kind.TABLE, part) for part in parts))
    contents = file_bytes(key, stored)
    assert read_file(contents, key) == stored
    if other != key:
        with pytest.raises(ArtifactError, match="another key"):
            read_file(contents, other)


FOREIGN = {
    "an artifact": write(artifact()),
    "no manifest": pack_sections([Section.of(Kind.TABLE, b"")]),
    "a manifest that is no JSON": pack_sections([Section.of(Kind.MANIFEST, b"{")]),
    "a manifest that is no object": pack_sections([Section.of(Kind.MANIFEST, b'["key"]')]),
    "a manifest nested deeply": pack_sections([Section.of(Kind.MANIFEST, b"[" * 100_000)]),
    "a manifest without a key": pack_sections([manifest_section({})]),
    "a key that is no text": pack_sections([manifest_section({"key": ["key"]})]),
    "a file of the cache as it once was": b"smelt cache 1\n" + bytes(100),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_contents_that_are_whole_but_not_of_the_cache_are_refused(kind: str, store: CacheStore) -> None:
    store.put("key", STORED)
    store.path("key").write_bytes(FOREIGN[kind])
    assert store.get("key") is None
    assert store.put("key", STORED)
    assert store.get("key") == STORED


def test_more_sections_than_a_file_may_have_are_not_written(store: CacheStore) -> None:
    assert not store.put("key", CacheFile({}, (Section.of(Kind.TABLE, b""),) * 256))
    assert not list(store.directory.iterdir())


def test_a_damaged_file_counts_as_absent_and_is_written_anew(store: CacheStore) -> None:
    store.put("key", STORED)
    path = store.path("key")
    path.write_bytes(path.read_bytes()[:-1])
    assert store.get("key") is None
    store.put("key", STORED)
    assert store.get("key") == STORED


def test_a_file_that_others_may_write_is_not_read(store: CacheStore) -> None:
    store.put("key", STORED)
    store.path("key").chmod(0o666)
    assert store.get("key") is None


def test_what_is_no_plain_file_is_not_read(store: CacheStore, tmp_path: Path) -> None:
    store.put("key", STORED)
    path = store.path("key")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert store.get("key") is None
    path.unlink()
    path.mkdir()
    assert store.get("key") is None
    assert not store.put("key", STORED)
    assert store.get("key") is None


_HOSTILE = {
    "fifo": "os.mkfifo(path)",
    "socket": "socket.socket(socket.AF_UNIX).bind(path.name)",
    "device": "os.symlink('/dev/zero', path)",
    "directory": "path.mkdir()",
    "link to a fifo": "os.mkfifo(path.with_suffix('.pipe')); os.symlink(path.with_suffix('.pipe'), path)",
    "link to itself": "os.symlink(path, path)",
    "sparse terabyte": "path.touch(0o600); os.truncate(path, 1 << 40)",
    "sparse, of our format": "path.touch(0o600); path.write_bytes(MAGIC); os.truncate(path, 1 << 40)",
    "sparse, within the limit": "path.touch(0o600); os.truncate(path, 1 << 29)",
    "empty": "path.touch(0o600)",
    "unreadable": "path.write_bytes(MAGIC); path.chmod(0)",
}


def test_whatever_is_in_a_files_place_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    script = """
import os, resource, socket, sys
from pathlib import Path
from smelt.runtime.cache import MAGIC, CacheFile, CacheStore

for kind, make in eval(sys.argv[2]).items():
    print(kind, flush=True)
    store = CacheStore(Path(sys.argv[1], kind), 1 << 30)
    store.directory.mkdir()
    os.chdir(store.directory)
    path = store.path("key")
    exec(make)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert store.get("key") is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "it was read"
    assert store.put("key", CacheFile({})) == (not path.is_dir())
    assert store.get("key") == (None if path.is_dir() else CacheFile({}))
print("right")
"""
    done = processes.run(script, arguments=[str(tmp_path), repr(_HOSTILE)], seconds=120)
    assert done.stdout.splitlines()[-1:] == ["right"], (done.stdout, done.stderr)


def test_a_file_that_is_larger_than_all_may_be_does_not_drive_the_others_out(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, 10_000)
    assert store.put("key", STORED)
    large = tmp_path / ("f" * 64 + cache.SUFFIX)
    large.touch()
    os.truncate(large, 1 << 40)
    store._evict()
    assert not large.exists()
    assert store.get("key") == STORED


def test_a_directory_may_be_replaced_by_anything_at_any_time(store: CacheStore, tmp_path: Path) -> None:
    for replace in (
        lambda: store.directory.write_bytes(b""),
        lambda: os.mkfifo(store.directory),
        lambda: store.directory.symlink_to(tmp_path / "nowhere"),
        lambda: store.directory.symlink_to(store.directory),
    ):
        replace()
        assert store.get("key") is None
        store.put("key", STORED)
        assert store.usage().files <= 1
        store.clear()
        store.directory.unlink()
    assert store.put("key", STORED)
    assert store.get("key") == STORED


def test_keys_may_hold_names_that_are_no_text(store: CacheStore) -> None:
    assert store.put("a file called \udcff", STORED)
    assert store.get("a file called \udcff") == STORED


def test_a_full_disk_leaves_nothing_behind_and_raises_nothing(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("key", numbered(1))

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache, "_write", full)
    assert not store.put("key", STORED)
    assert store.get("key") == numbered(1)
    assert len(list(store.directory.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_a_device_without_space_is_an_error_that_put_survives(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened("/dev/full", os.O_WRONLY))
    assert not store.put("key", STORED)


def test_a_directory_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CacheStore(tmp_path / "file" / "cache", 1 << 20)
    assert not store.put("key", STORED)
    assert store.get("key") is None
    assert store.usage().files == 0
    assert store.clear() == 0


def test_beyond_the_limit_the_least_recently_used_go(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, 10_000)
    for number in range(8):
        store.put(str(number), CacheFile({"text": 800 * "x"}))
        os.utime(store.path(str(number)), (number, number))
    assert store.get("0") is not None  # and is the most recently used from here on
    store.put("big", CacheFile({"text": 2800 * "x"}))
    assert store.usage().bytes <= 10_000
    assert store.get("big") is not None
    assert store.get("0") is not None
    assert store.get("1") is None
    assert store.get("2") is None


def test_something_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, 100)
    store.put("key", CacheFile({"text": 800 * "x"}))
    assert store.usage().files == 0


def test_clear_deletes_the_caches_files_and_no_others(store: CacheStore) -> None:
    store.put("key", STORED)
    (store.directory / ".tmp-1-abc").write_bytes(b"unfinished")
    (store.directory / "notes.txt").write_text("mine")
    assert store.clear() == 2
    assert [path.name for path in store.directory.iterdir()] == ["notes.txt"]


def test_what_a_dead_process_left_unfinished_goes_after_a_while(store: CacheStore) -> None:
    store.put("key", STORED)
    old, new = store.directory / ".tmp-1-old", store.directory / ".tmp-1-new"
    for path in (old, new):
        path.write_bytes(b"unfinished")
    os.utime(old, (1, 1))
    CacheStore(store.directory, store.limit + 1).put("another", STORED)  # as a process does at its first write
    assert not old.exists()
    assert new.exists()


def test_not_every_write_looks_at_every_file(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of thousands that took longer than compiling."""
    looked: list[object] = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (looked.append(path), scan(path))[1])
    for number in range(20):
        store.put(str(number), numbered(number))
    assert len(looked) == 1


WRITER = """
import sys
from pathlib import Path
from smelt.ir.artifact_file.container import Section
from smelt.runtime.cache import CacheFile, CacheStore
store = CacheStore(Path(sys.argv[1]), 1 << 30)
print("ready", flush=True)
for turn in range(int(sys.argv[2])):
    store.put("key", CacheFile({}, (Section.of(3, sys.argv[3].encode() * 100_000),) * 3))
"""


def written(word: str) -> CacheFile:
    return CacheFile({}, (Section.of(Kind.CODE, word.encode() * 100_000),) * 3)


def start(directory: Path, turns: int, word: str) -> Started:
    process = processes.start(WRITER, arguments=[str(directory), str(turns), word])
    while not process.out.read_text():
        assert process.runs()
    return process


def test_processes_that_write_one_key_never_show_half_a_file(store: CacheStore) -> None:
    writers = [start(store.directory, 60, word) for word in "ab"]
    seen = set()
    while any(writer.runs() for writer in writers):
        stored = store.get("key")
        if stored is not None:
            assert stored in (written("a"), written("b"))
            seen.add(bytes(stored.sections[0].data[:1]))
    assert [writer.done().returncode for writer in writers] == [0, 0]
    assert seen
    assert store.get("key") is not None
    assert store.usage().files == 1


def test_a_process_killed_while_it_writes_loses_nothing(store: CacheStore) -> None:
    store.put("key", written("c"))
    for _ in range(3):
        writer = start(store.directory, 1_000_000, "d")
        writer.kill()
        writer.done()
        assert store.get("key") in (written("c"), written("d"))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.directory() == Path("/home/somebody/.cache/smelt")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/somewhere")
    assert cache.directory() == Path("/var/somewhere/smelt")
    monkeypatch.setenv("SMELT_CACHE_DIR", "/var/chosen")
    assert cache.directory() == Path("/var/chosen")
    monkeypatch.setattr(config, "disk_cache_dir", "/var/set")
    assert cache.directory() == Path("/var/set")


def test_how_the_cache_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE", "0")
    assert cache.open_store() is None
    monkeypatch.delenv("SMELT_CACHE")
    monkeypatch.setattr(config, "disk_cache_dir", tempfile.gettempdir())
    assert cache.open_store() is not None
    monkeypatch.setattr(config, "disk_cache", False)
    assert cache.open_store() is None
