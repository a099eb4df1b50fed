"""Object files → images: machine code that needs no linker, no loader and no LLVM to be reused.

    an ELF object that calls `GOMP_parallel`   →   Image(code, symbols={"k0": 64}, slots=((4088, "GOMP_parallel", 0),))

Sections are laid out in one run of bytes and every reference between them is resolved, whatever the address the bytes
will have: all of it is relative, on pages. What is not in the object is reached through slots, eight bytes at
the end of the image each, which get an address when the image is mapped (`runtime.program.code_image`); a call to it
goes through a stub beside its slot. Relocations and sections that generated code does not need are refused.
"""

import struct
from dataclasses import field

from smelt.base.fast_dataclass import dataclass
from smelt.runtime.program.code_image import Image, Slot

PAGE = 4096
_AARCH64, _X86_64 = 183, 62
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_ALLOC, _TLS = 2, 0x400
_UNDEFINED, _GLOBAL = 0, 1


class CannotLink(Exception):
    """Why an object file cannot become an image."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    info: int
    section: int
    value: int


@dataclass(slots=True)
class _Layout:
    """The image in the making."""

    machine: int
    code: bytearray = field(default_factory=bytearray)
    places: dict[int, int] = field(default_factory=dict)  # section → where it begins
    slots: dict[str, int] = field(default_factory=dict)  # what is outside → its slot
    stubs: dict[str, int] = field(default_factory=dict)
    relative: list[Slot] = field(default_factory=list)

    def append(self, data: bytes, align: int) -> int:
        self.code += bytes(-len(self.code) % align)
        self.code += data
        return len(self.code) - len(data)

    def slot(self, name: str) -> int:
        if name not in self.slots:
            self.slots[name] = self.append(bytes(8), 8)
        return self.slots[name]

    def stub(self, name: str) -> int:
        """Code that jumps to what is outside."""
        if name not in self.stubs:
            if self.machine == _AARCH64:
                code = struct.pack("<II", 0x58000050, 0xD61F0200)  # ldr x16, next; br x16; next: the address
            else:
                code = b"\xff\x25\x02\x00\x00\x00\xcc\xcc"  # jmp *2(%rip); int3; int3; then the address
            self.stubs[name] = self.append(code + bytes(8), 16)
            self.slots.setdefault(name, self.stubs[name] + 8)
            if self.slots[name] != self.stubs[name] + 8:
                self.relative.append(Slot(self.stubs[name] + 8, name, 0))
        return self.stubs[name]


def link(data: bytes) -> Image:
    """The image of an ELF object's code; `CannotLink` says what stands against it."""
    machine, sections = _read_sections(data)
    layout = _Layout(machine)
    for number, section in enumerate(sections):
        if not section.flags & _ALLOC or not section.size or section.name == ".eh_frame":  # nothing unwinds kernels
            continue
        # Data may be declared writable, as pools of constants are for LLVM's sake, but generated code writes none.
        if section.flags & _TLS or section.kind == _NOBITS or section.align > PAGE:
            raise CannotLink(f"section {section.name} is not code or constants")
        content = data[section.offset : section.offset + section.size]
        layout.places[number] = layout.append(content, max(section.align, 1))
    symbols = _read_symbols(data, sections)
    for section in sections:
        if section.kind == _RELA and section.info in layout.places:
            rows = struct.iter_unpack("<QQq", data[section.offset : section.offset + section.size])
            for offset, info, addend in rows:
                place = layout.places[section.info] + offset
                _relocate(layout, info & 0xFFFFFFFF, place, symbols[info >> 32], addend)
    named = tuple(
        (symbol.name, layout.places[symbol.section] + symbol.value)
        for symbol in symbols
        if symbol.info >> 4 == _GLOBAL and symbol.section in layout.places
    )
    slots = [*(Slot(place, name, 0) for name, place in layout.slots.items()), *layout.relative]
    return Image(bytes(layout.code), named, tuple(slots))


def _read_sections(data: bytes) -> tuple[int, list[_Section]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise CannotLink("the object file is not 64-bit little-endian ELF")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine not in (_AARCH64, _X86_64):
        raise CannotLink(f"ELF machine {machine} is not known")
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + size * number) for number in range(count)]
    strings = rows[names][4]
    return machine, [
        _Section(_string(data, strings + row[0]), row[1], row[2], row[4], row[5], row[6], row[7], row[8])
        for row in rows
    ]


def _read_symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    table = next((section for section in sections if section.kind == _SYMTAB), None)
    if table is None:
        return []
    strings = sections[table.link].offset
    rows = struct.iter_unpack("<IBBHQQ", data[table.offset : table.offset + table.size])
    return [_Symbol(_string(data, strings + name), info, section, value) for name, info, _, section, value, _ in rows]


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


# Relocations: P is the place, S the symbol, A the addend, as the ABIs' documents write them.

# AArch64 calls and loads by page: where in the instruction the value goes.
_PREL32, _ABS64, _ADR_PAGE, _ADD_LOW, _CALL, _JUMP, _GOT_PAGE, _GOT_LOW = 261, 257, 275, 277, 283, 282, 311, 312
_LOADS = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # low bits of an address, scaled by the size that is loaded
# x86-64.
_X64, _X_PC32, _X_PLT32, _X_GOT = 1, 2, 4, (9, 41, 42)


def _relocate(layout: _Layout, kind: int, place: int, symbol: _Symbol, addend: int) -> None:
    inside = symbol.section in layout.places
    if not inside and symbol.section != _UNDEFINED:
        raise CannotLink(f"{symbol.name or 'a symbol'} is in a section that is left out")
    target = layout.places[symbol.section] + symbol.value if inside else 0
    if kind == (_ABS64 if layout.machine == _AARCH64 else _X64):
        if not inside:
            layout.relative.append(Slot(place, symbol.name, addend))
        else:
            layout.relative.append(Slot(place, "", target + addend))
        return
    if layout.machine == _AARCH64:
        _relocate_aarch64(layout, kind, place, symbol, target + addend, inside)
    else:
        _relocate_x86(layout, kind, place, symbol, target, addend, inside)


def _relocate_aarch64(layout: _Layout, kind: int, place: int, symbol: _Symbol, target: int, inside: bool) -> None:
    if kind in (_CALL, _JUMP):
        distance = (target if inside else layout.stub(symbol.name)) - place
        _patch(layout, place, (_fits(distance, 28) >> 2) & 0x3FFFFFF)
        return
    if kind in (_GOT_PAGE, _GOT_LOW):
        if inside:
            raise CannotLink(f"{symbol.name} is reached as if it were outside")
        target, inside = layout.slot(symbol.name), True
    if not inside:
        raise CannotLink(f"relocation {kind} of {symbol.name}, which is outside")
    if kind == _PREL32:
        struct.pack_into("<i", layout.code, place, _fits(target - place, 32))
    elif kind in (_ADR_PAGE, _GOT_PAGE):
        pages = _fits((target // PAGE) - (place // PAGE), 21)
        _patch(layout, place, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)
    elif kind == _ADD_LOW:
        _patch(layout, place, target % PAGE << 10)
    elif kind in _LOADS or kind == _GOT_LOW:
        scale = _LOADS.get(kind, 3)
        if target % (1 << scale):
            raise CannotLink(f"relocation {kind} of an address that is not aligned")
        _patch(layout, place, (target % PAGE >> scale) << 10)
    else:
        raise CannotLink(f"relocation {kind} is not known")


def _relocate_x86(
    layout: _Layout, kind: int, place: int, symbol: _Symbol, target: int, addend: int, inside: bool
) -> None:
    if kind in _X_GOT:
        if inside:
            raise CannotLink(f"{symbol.name} is reached as if it were outside")
        target = layout.slot(symbol.name)
    elif kind in (_X_PLT32, _X_PC32):
        if not inside:
            if kind == _X_PC32:
                raise CannotLink(f"the address of {symbol.name}, which is outside")
            target = layout.stub(symbol.name)
    else:
        raise CannotLink(f"relocation {kind} is not known")
    struct.pack_into("<i", layout.code, place, _fits(target + addend - place, 32))


def _fits(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise CannotLink("the image is too large")
    return value


def _patch(layout: _Layout, place: int, bits: int) -> None:
    """Set bits of an instruction that are zero there."""
    struct.pack_into("<I", layout.code, place, struct.unpack_from("<I", layout.code, place)[0] | bits)
