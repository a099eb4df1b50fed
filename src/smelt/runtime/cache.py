"""The disk cache: a directory of files, one per key, that any number of processes read and write at once.

    store = open_store()                                        None if the cache is off
    store.put("key text", CacheFile({"chosen": 3}, (…,)))
    store.get("key text")                                       the same again, or None

A file has the form of an artifact (`ir.artifact_file`): a manifest, which holds the whole key and plain values, and any
other sections, as a program's table and its machine code. Everything in it is under a checksum.

A file is made under another name and renamed, so nobody sees half of one. Whatever is wrong with a file (cut short, a
bit flipped, another's, another format), it counts as absent and is written anew. Writing is best effort: where it fails
(no space, no right) the program goes on without. Files are not forced to the disk: after a power cut some may be torn,
which the checksum tells. The cache holds machine code, so files that somebody else could have written are not read.
"""

import contextlib
import functools
import hashlib
import operator
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import config
from smelt.ir.artifact_file.container import KEY, ArtifactError, Section, manifest_in, manifest_section, unpack
from smelt.ir.artifact_file.container import pack as pack_sections
from smelt.ir.artifact_file.layout import MAGIC as MAGIC_WORD

MAGIC = MAGIC_WORD.to_bytes(8, "little")
SUFFIX = ".smelt"
_TEMPORARY = ".tmp-"
_ABANDONED = 3600.0  # seconds after which an unfinished file belongs to a process that died


@dataclass(frozen=True, slots=True)
class CacheFile:
    """What is stored under a key: values that JSON has, and sections of bytes."""

    values: Mapping[str, Any]
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What is in a cache."""

    directory: Path
    files: int
    bytes: int
    limit: int


@dataclass(frozen=True, slots=True)
class CacheStore:
    """A cache in `directory`, which is made when first written to."""

    directory: Path
    limit: int

    def path(self, key: str) -> Path:
        return self.directory / (hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest() + SUFFIX)

    def get(self, key: str) -> CacheFile | None:
        """What is stored under `key`."""
        path = self.path(key)
        try:
            contents = read_file(_read(path, self.limit), key)
        except FileNotFoundError:
            return None
        except (OSError, ArtifactError, MemoryError) as reason:
            events.emit("cache", f"{path.name} is not used: {reason or 'too little memory is left'}")
            return None
        with contextlib.suppress(OSError, NotImplementedError):
            os.utime(path, follow_symlinks=False)  # the least recently used go first
        return contents

    def put(self, key: str, contents: CacheFile) -> bool:
        """Store something under `key`; whether that worked."""
        path = self.path(key)
        temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = file_bytes(key, contents)
            _write(temporary, data)
            os.replace(temporary, path)
        except (OSError, ArtifactError, MemoryError) as reason:
            events.emit("cache", f"{path.name} is not written: {reason or 'too little memory is left'}")
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        # Listing every file takes longer than writing one: that is done when a part of the limit has been written.
        left = _room.get(self, -1) - len(data)
        _room[self] = left if left >= 0 else min(self.limit - self._evict(), self.limit // 16)
        return True

    def drop(self, key: str) -> None:
        """Forget what is stored under `key`."""
        with contextlib.suppress(OSError):
            self.path(key).unlink()

    def usage(self) -> CacheUsage:
        sizes = [status.st_size for path, status in self._entries() if path.endswith(SUFFIX)]
        return CacheUsage(self.directory, len(sizes), sum(sizes), self.limit)

    def clear(self) -> int:
        """Delete every file of the cache, unfinished ones included, and nothing else; how many there were."""
        return sum(_deleted(path) for path, _ in self._entries())

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """The cache's own files. Others may come and go at any moment."""
        with contextlib.suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.name.endswith(SUFFIX) or entry.name.startswith(_TEMPORARY):
                        yield entry.path, entry.stat(follow_symlinks=False)

    def _evict(self) -> int:
        """Evict files until below the limit, with a little to spare, so that not every write evicts one; the bytes
        left."""
        # A file larger than the limit is not ours, and no reason to evict others.
        entries = sorted(self._entries(), key=lambda each: (each[1].st_size <= self.limit, each[1].st_mtime))
        now = time.time()
        total = sum(status.st_size for _, status in entries)
        wanted = self.limit if total <= self.limit else self.limit * 9 // 10
        for path, status in entries:
            finished = path.endswith(SUFFIX)
            if (total > wanted) if finished else (now - status.st_mtime > _ABANDONED):
                _deleted(path)
                total -= status.st_size
        return total


_room: dict[CacheStore, int] = {}  # bytes that may be written before the files are listed again


def _deleted(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def file_bytes(key: str, contents: CacheFile) -> bytes:
    """A file."""
    return pack_sections([manifest_section({KEY: key, **contents.values}), *contents.sections])


def read_file(data: bytes, key: str) -> CacheFile:
    """What is in a file that was written for this key; an error if there is none, or anything is wrong with it."""
    sections = unpack(data)
    values = manifest_in(sections)
    if values.pop(KEY, None) != key:
        raise ArtifactError("it belongs to another key")
    return CacheFile(values, tuple(sections[1:]))


_OPENING = ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")  # as far as the system has them


def _read(path: Path, most: int) -> bytes:
    """The contents of a plain file of at most `most` bytes that nobody else can have written. Its kind is checked
    before it is read: opening a pipe must not wait for a writer, and a sparse file may claim a terabyte."""
    descriptor = os.open(path, functools.reduce(operator.or_, (getattr(os, name, 0) for name in _OPENING), os.O_RDONLY))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError("it is no plain file")
        if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            raise ArtifactError("others may write it")
        if status.st_size > most:
            raise ArtifactError("it is larger than the whole cache may be")
        if os.read(descriptor, len(MAGIC)) != MAGIC:
            raise ArtifactError("it is in another format")
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read(status.st_size)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)


def directory() -> Path:
    """Where the cache is: the setting, else `SMELT_CACHE_DIR`, else the user's directory for caches."""
    chosen = config.disk_cache_dir or os.environ.get("SMELT_CACHE_DIR", "")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "smelt"


def open_store() -> CacheStore | None:
    """The cache as the settings have it now; None if it is off."""
    if not config.disk_cache or os.environ.get("SMELT_CACHE", "") == "0":
        return None
    try:
        return CacheStore(directory(), config.disk_cache_limit)
    except RuntimeError as reason:  # no home directory
        events.emit("cache", f"there is no place for a cache: {reason}")
        return None
