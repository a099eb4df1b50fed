"""Turns a WebAssembly object of LLVM into a module that an engine instantiates, without a linker.

    as_module(object_bytes)    →   exports: `memory`, `__heap_base`, and each function that the object defines by name

The memory, table and stack pointer that the object imports from a linker become the module's own. The stack comes first
in memory, so that an overflow traps, then constants; from `__heap_base` on, memory is the caller's. Undefined functions
stay imports of "env". Indices need no change; addresses of constants move.
"""

from collections.abc import Iterator, Mapping

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass

STACK_BYTES = 1 << 18
_PAGE = 1 << 16
_MOST_PAGES = 1 << 16  # 4 GiB
_TYPE, _IMPORT, _FUNCTION, _TABLE, _MEMORY, _GLOBAL, _EXPORT, _ELEMENT, _CODE, _DATA, _DATA_COUNT = (
    1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12
)  # fmt: skip
_CUSTOM = 0
# Relocations that name an address in memory, by the form in which it is written; the others are indices.
_ADDRESS_LEB, _ADDRESS_SIGNED, _ADDRESS_WORD = 3, 4, 5
_INDICES = (0, 1, 2, 6, 7, 20)
_WITH_ADDEND = (3, 4, 5, 8, 9, 11, 14, 15, 16, 17, 22, 23)
_UNDEFINED, _EXPLICIT_NAME, _LOCAL, _HIDDEN = 0x10, 0x40, 0x02, 0x04


def as_module(data: bytes, notes: Mapping[str, bytes] | None = None) -> bytes:
    """The module of an object. `notes`: custom sections, by name."""
    if data[:8] != b"\0asm\1\0\0\0":
        raise SmeltError("SM030", "the object file is not WebAssembly")
    sections, customs = _read(data)
    imports, provided, tables = _imports(sections.get(_IMPORT, b"\0"))
    base = STACK_BYTES
    code, constants = bytearray(sections.get(_CODE, b"")), bytearray(sections.get(_DATA, b""))
    _relocate(code, customs.get("reloc.CODE"), base)
    _relocate(constants, customs.get("reloc.DATA"), base)
    content, end = _moved_segments(bytes(constants), base)
    heap = -(-end // 64) * 64
    globals_ = [(True, base)] * (1 if "__stack_pointer" in provided else 0) + [(False, heap)]
    exports = [("memory", 2, 0), ("__heap_base", 3, len(globals_) - 1)]
    exports += [(name, 0, index) for name, index in _functions(customs["linking"])]
    written = [
        (_TYPE, sections.get(_TYPE, b"\0")),
        (_IMPORT, imports),
        (_FUNCTION, sections.get(_FUNCTION, b"\0")),
        (_TABLE, tables),
        (_MEMORY, b"\1\1" + _leb(-(-heap // _PAGE)) + _leb(_MOST_PAGES)),
        (_GLOBAL, _leb(len(globals_)) + b"".join(map(_global, globals_))),
        (_EXPORT, _leb(len(exports)) + b"".join(_name(n) + bytes([k]) + _leb(i) for n, k, i in exports)),
        (_ELEMENT, sections.get(_ELEMENT)),
        (_DATA_COUNT, sections.get(_DATA_COUNT)),
        (_CODE, bytes(code)),
        (_DATA, content),
        *((_CUSTOM, _name(name) + note) for name, note in (notes or {}).items()),
    ]
    return data[:8] + b"".join(bytes([kind]) + _leb(len(body)) + body for kind, body in written if body)


def undefined_functions(data: bytes) -> tuple[str, ...]:
    """What an object calls and does not define, by name."""
    sections, _ = _read(data)
    reader = _Reader(sections.get(_IMPORT, b"\0"))
    return tuple(name for kind, name, _ in reader.imports() if kind == 0)


@dataclass(slots=True)
class _Reader:
    data: bytes
    place: int = 0

    def leb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.place]
            self.place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        first = self.place
        value = self.leb()
        bits = 7 * (self.place - first)
        return value - (1 << bits) if value >> bits - 1 else value

    def take(self, count: int) -> bytes:
        self.place += count
        return self.data[self.place - count : self.place]

    def name(self) -> str:
        return self.take(self.leb()).decode()

    def limits(self) -> None:
        if self.leb() & 1:
            self.leb()
        self.leb()

    def imports(self) -> Iterator[tuple[int, str, bytes]]:
        """Kind, name and text of each."""
        for _ in range(self.leb()):
            first = self.place
            self.name()
            name, kind = self.name(), self.take(1)[0]
            described = self.place
            if kind == 0:
                self.leb()
            elif kind == 1:
                self.take(1)
                self.limits()
            elif kind == 2:
                self.limits()
            elif kind == 3:
                self.take(2)
            else:
                raise SmeltError("SM030", f"an import of kind {kind}")
            yield kind, name, self.data[first if kind == 0 else described : self.place]


def _read(data: bytes) -> tuple[dict[int, bytes], dict[str, bytes]]:
    """Sections by kind, and those that are custom by name."""
    reader = _Reader(data, 8)
    sections, customs = {}, {}
    while reader.place < len(data):
        kind = reader.take(1)[0]
        body = reader.take(reader.leb())
        if kind == _CUSTOM:
            inside = _Reader(body)
            name = inside.name()
            customs[name] = body[inside.place :]
        else:
            sections[kind] = body
    return sections, customs


def _imports(section: bytes) -> tuple[bytes, set[str], bytes]:
    """The imported functions; the names of what the module defines itself; its table."""
    functions, provided, tables = [], set(), b""
    for kind, name, text in _Reader(section).imports():
        if kind == 0:
            functions.append(text)
            continue
        provided.add(name)
        if kind == 1:  # of functions, from the second place on: a pointer is never zero
            tables = b"\1" + text[:1] + b"\0" + _leb(_Reader(text, 2).leb() + 1)
        elif kind == 3 and name != "__stack_pointer":
            raise SmeltError("SM030", f"the object imports the variable {name}")
    return _leb(len(functions)) + b"".join(functions), provided, tables


def _functions(linking: bytes) -> list[tuple[str, int]]:
    """Functions that an object defines for others, by name."""
    reader = _Reader(linking)
    reader.leb()  # version
    while reader.place < len(linking):
        kind, size = reader.take(1)[0], reader.leb()
        if kind != 8:
            reader.take(size)
            continue
        functions = []
        for _ in range(reader.leb()):
            what, flags = reader.take(1)[0], reader.leb()
            if what in (0, 2, 5):  # a function, a variable, a table
                index = reader.leb()
                name = reader.name() if not flags & _UNDEFINED or flags & _EXPLICIT_NAME else ""
                if what == 0 and not flags & (_UNDEFINED | _LOCAL | _HIDDEN):
                    functions.append((name, index))
            elif what == 1:
                reader.name()
                if not flags & _UNDEFINED:
                    for _ in range(3):
                        reader.leb()
            else:
                reader.leb()
        return functions
    return []


def _relocate(body: bytearray, table: bytes | None, base: int) -> None:
    """Move the addresses that are written in a section."""
    if table is None:
        return
    reader = _Reader(table)
    reader.leb()  # which section
    for _ in range(reader.leb()):
        kind, place = reader.take(1)[0], reader.leb()
        reader.leb()  # of what
        if kind in _WITH_ADDEND:
            reader.signed()
        if kind in (_ADDRESS_LEB, _ADDRESS_SIGNED):
            value = _Reader(bytes(body[place : place + 5])).leb()
            body[place : place + 5] = _padded(value + base)
        elif kind == _ADDRESS_WORD:
            value = int.from_bytes(body[place : place + 4], "little")
            body[place : place + 4] = (value + base).to_bytes(4, "little")
        elif kind not in _INDICES:
            raise SmeltError("SM030", f"relocation {kind} of WebAssembly is not known")


def _moved_segments(section: bytes, base: int) -> tuple[bytes, int]:
    """The data section with every segment moved, and where it ends."""
    if not section:
        return b"", base
    reader = _Reader(section)
    count, end = reader.leb(), base
    parts = [_leb(count)]
    for _ in range(count):
        if reader.leb() != 0 or reader.take(1) != b"\x41":  # at a constant address
            raise SmeltError("SM030", "a segment of memory is nowhere in particular")
        start = reader.signed() + base
        reader.take(1)
        content = reader.take(reader.leb())
        parts.append(b"\0\x41" + _signed_leb(start) + b"\x0b" + _leb(len(content)) + content)
        end = max(end, start + len(content))
    return b"".join(parts), end


def _global(value: tuple[bool, int]) -> bytes:
    """An i32, and whether it changes."""
    return bytes([0x7F, value[0], 0x41]) + _signed_leb(value[1]) + b"\x0b"


def _name(text: str) -> bytes:
    return _leb(len(text.encode())) + text.encode()


def _leb(value: int) -> bytes:
    encoded = bytearray()
    while True:
        encoded.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(encoded)


def _signed_leb(value: int) -> bytes:
    encoded = bytearray()
    while True:
        byte, value = value & 127, value >> 7
        done = value == 0 and not byte & 64
        encoded.append(byte if done else byte | 128)
        if done:
            return bytes(encoded)


def _padded(value: int) -> bytes:
    """In five bytes; read with or without a sign it is the same below 2³¹."""
    if value >= 1 << 31:
        raise SmeltError("SM030", "the constants of a WebAssembly module take more than 2 GiB")
    return bytes([value >> shift & 127 | 128 for shift in (0, 7, 14, 21)] + [value >> 28 & 127])
