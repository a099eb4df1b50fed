"""Links object files into images: machine code that needs no linker, no loader and no LLVM to be reused.

    an ELF object that calls `GOMP_parallel`   →   Image(code, symbols={"k0": 64}, slots=((4088, "GOMP_parallel", 0),))

Supports x86-64, AArch64 and RISC-V, whichever this machine is. Sections are laid out in one run of bytes, and all
references between them are resolved as relative ones, so the image can be mapped at any page. External symbols are
reached through slots, eight bytes each at the end of the image, which get an address when the image is mapped
(`runtime.program.code_image`); a call to one goes through a stub beside its slot. Relocations and sections that
generated code does not need are rejected.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.code import CodeSlot
from smelt.runtime.program.code_image import Image

PAGE = 4096
_AARCH64, _X86_64, _RISCV = 183, 62, 243
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
    places: dict[int, int] = field(default_factory=dict)  # section of the object at hand → where it begins
    named: dict[str, int] = field(default_factory=dict)  # functions of all objects
    slots: dict[str, int] = field(default_factory=dict)  # what is outside → its slot
    stubs: dict[str, int] = field(default_factory=dict)
    relative: list[CodeSlot] = field(default_factory=list)
    halves: dict[int, int] = field(default_factory=dict)  # RISC-V: place of an upper half → distance from there

    def append(self, data: bytes, align: int) -> int:
        self.code += bytes(-len(self.code) % align)
        self.code += data
        return len(self.code) - len(data)

    def slot(self, name: str) -> int:
        if name not in self.slots:
            self.slots[name] = self.append(bytes(8), 8)
        return self.slots[name]

    def stub(self, name: str) -> int:
        """Code that jumps to an external symbol."""
        if name not in self.stubs:
            code = _STUBS[self.machine]
            self.stubs[name] = self.append(code + bytes(8), 16)
            address = self.stubs[name] + len(code)
            self.slots.setdefault(name, address)
            if self.slots[name] != address:
                self.relative.append(CodeSlot(address, name, 0))
        return self.stubs[name]


# What jumps to the address behind it.
_STUBS = {
    _AARCH64: struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, address; br x16
    _X86_64: b"\xff\x25\x02\x00\x00\x00\xcc\xcc",  # jmp *2(%rip); int3; int3
    _RISCV: struct.pack("<IIII", 0x00000E17, 0x010E3E03, 0x000E0067, 0x13),  # auipc t3, 0; ld t3, 16(t3); jr t3; nop
}


def link(data: bytes, library: Mapping[str, bytes] | None = None) -> Image:
    """The image of an ELF object's code; `CannotLink` gives the reason otherwise. Undefined functions come from the
    `library`, an object for each; only what the function needs is taken from it."""
    own = _read(data)
    layout = _Layout(own.machine)
    _place(layout, own)
    symbols = tuple(layout.named.items())
    return _linked(layout, [own, *_taken(layout, own, library or {})], symbols)


def link_all(objects: Sequence[bytes]) -> Image:
    """One image of several objects for one machine, which may call each other's functions."""
    parts = [_read(data) for data in objects]
    layout = _Layout(parts[0].machine)
    for part in parts:
        if part.machine != layout.machine:
            raise CannotLink("the objects are for different machines")
        _place(layout, part)
    return _linked(layout, parts, tuple(layout.named.items()))


def _linked(layout: _Layout, parts: "Sequence[_Object]", symbols: tuple[tuple[str, int], ...]) -> Image:
    """Of objects whose sections have their places."""
    for part in parts:
        layout.places = part.places
        for section in part.sections:
            if section.kind == _RELA and section.info in part.places:
                _relocate_section(layout, part, section)
    slots = [*(CodeSlot(place, name, 0) for name, place in layout.slots.items()), *layout.relative]
    return Image(bytes(layout.code), symbols, tuple(slots))


def _taken(layout: _Layout, own: "_Object", library: Mapping[str, bytes]) -> "list[_Object]":
    """Objects of the library with places for what of them is reached from `own`."""
    parts: dict[int, _Object] = {}  # one for all functions of the same bytes
    waiting = [symbol.name for symbol in own.symbols if symbol.section == _UNDEFINED]
    while waiting:
        name = waiting.pop()
        if name not in library or name in layout.named:
            continue
        data = library[name]
        part = parts.setdefault(id(data), _read(data))
        if part.machine != layout.machine:
            raise CannotLink("the objects are for different machines")
        symbol = next((each for each in part.symbols if each.name == name and each.section != _UNDEFINED), None)
        if symbol is None:
            raise CannotLink(f"the object for {name} does not define it")
        for number, outside in _reached(part, symbol.section):
            waiting += outside
            if number not in part.places:
                _place_section(layout, part, number)
        layout.named[name] = part.places[symbol.section] + symbol.value
    return list(parts.values())


def _reached(part: "_Object", first: int) -> "Iterator[tuple[int, list[str]]]":
    """The sections that one of them needs, itself included, each with the names it refers to outside of the object."""
    seen, waiting = {first}, [first]
    while waiting:
        number = waiting.pop()
        symbols = [part.symbols[at] for at in part.references(number)]
        inside = {symbol.section for symbol in symbols if symbol.section in range(1, len(part.sections))} - seen
        seen |= inside
        waiting += sorted(inside)
        yield number, [symbol.name for symbol in symbols if symbol.section == _UNDEFINED and symbol.name]


@dataclass(frozen=True, slots=True)
class _Object:
    """An object file, and where its sections are in the image."""

    machine: int
    data: bytes
    sections: list[_Section]
    symbols: list[_Symbol]
    places: dict[int, int] = field(default_factory=dict)

    def references(self, number: int) -> list[int]:
        """The symbols that a section's relocations name, by their places."""
        symbols: list[int] = []
        for section in self.sections:
            if section.kind == _RELA and section.info == number:
                rows = struct.iter_unpack("<QQq", self.data[section.offset : section.offset + section.size])
                symbols += [info >> 32 for _, info, _ in rows]
        return list(dict.fromkeys(symbols))


def _read(data: bytes) -> _Object:
    machine, sections = _read_sections(data)
    return _Object(machine, data, sections, _read_symbols(data, sections))


def undefined(data: bytes) -> tuple[str, ...]:
    """What an object refers to and does not define, by name."""
    return tuple(symbol.name for symbol in _read(data).symbols if symbol.name and symbol.section == _UNDEFINED)


def _place(layout: _Layout, part: _Object) -> None:
    """Append the sections of an object, and note its functions."""
    for number, section in enumerate(part.sections):
        if section.flags & _ALLOC and section.size and section.name != ".eh_frame":  # nothing unwinds kernels
            _place_section(layout, part, number)
    for symbol in part.symbols:
        if symbol.info >> 4 == _GLOBAL and symbol.section in part.places:
            if symbol.name in layout.named:
                raise CannotLink(f"two objects define {symbol.name}")
            layout.named[symbol.name] = part.places[symbol.section] + symbol.value


def _place_section(layout: _Layout, part: _Object, number: int) -> None:
    section = part.sections[number]
    # Data may be declared writable, as pools of constants are for LLVM's sake, but generated code writes none.
    if section.flags & _TLS or section.kind == _NOBITS or section.align > PAGE:
        raise CannotLink(f"section {section.name} is not code or constants")
    content = part.data[section.offset : section.offset + section.size]
    part.places[number] = layout.append(content, max(section.align, 1))


def _relocate_section(layout: _Layout, part: _Object, section: _Section) -> None:
    rows = struct.iter_unpack("<QQq", part.data[section.offset : section.offset + section.size])
    placed = [(part.places[section.info] + offset, info, addend) for offset, info, addend in rows]
    for place, info, addend in sorted(placed, key=lambda row: row[1] & 0xFFFFFFFF in _LOW):
        _relocate(layout, info & 0xFFFFFFFF, place, part.symbols[info >> 32], addend)


def _read_sections(data: bytes) -> tuple[int, list[_Section]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise CannotLink("the object file is not 64-bit little-endian ELF")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine not in _STUBS:
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

# AArch64 loads by page: where in the instruction the value goes.
_PREL32, _ABS64, _ADR_PAGE, _ADD_LOW, _GOT_PAGE, _GOT_LOW = 261, 257, 275, 277, 311, 312
_LOADS = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # low bits of an address, scaled by the size that is loaded
# x86-64.
_X64, _X_PC32 = 1, 2
# RISC-V. The lower half of an address names the place of its upper half, which has to be known before it.
_R64, _R_GOT, _R_HIGH, _R_PC32, _R_LOW_LOAD, _R_LOW_STORE, _R_RELAX = 2, 20, 23, 57, 24, 25, 51
_R_SUMS = {33: ("<B", 1), 34: ("<H", 1), 35: ("<I", 1), 36: ("<Q", 1)} | {
    37: ("<B", -1), 38: ("<H", -1), 39: ("<I", -1), 40: ("<Q", -1)
}  # fmt: skip
# Jumps: the instruction's form, the bits of a distance, and which of them go where: from which bit, how many, to which.
_R_JUMPS = {
    16: ("<I", 13, ((12, 1, 31), (5, 6, 25), (1, 4, 8), (11, 1, 7))),
    17: ("<I", 21, ((20, 1, 31), (1, 10, 21), (11, 1, 20), (12, 8, 12))),
    44: ("<H", 9, ((8, 1, 12), (3, 2, 10), (6, 2, 5), (1, 2, 3), (5, 1, 2))),
    45: ("<H", 12, ((11, 1, 12), (4, 1, 11), (8, 2, 9), (10, 1, 8), (6, 1, 7), (7, 1, 6), (1, 3, 3), (5, 1, 2))),
}
_LOW = (_R_LOW_LOAD, _R_LOW_STORE)  # numbers that mean nothing elsewhere
# By machine: what is an address in memory; what calls a function, outside by its stub; what is read from a slot.
_ABSOLUTE = {_AARCH64: _ABS64, _X86_64: _X64, _RISCV: _R64}
_CALLS = {_AARCH64: (282, 283), _X86_64: (4,), _RISCV: (18, 19)}
_FROM_SLOT = {_AARCH64: (_GOT_PAGE, _GOT_LOW), _X86_64: (9, 41, 42), _RISCV: (_R_GOT,)}


def _relocate(layout: _Layout, kind: int, place: int, symbol: _Symbol, addend: int) -> None:
    machine, inside = layout.machine, symbol.section in layout.places
    if not inside and symbol.section != _UNDEFINED:
        raise CannotLink(f"{symbol.name or 'a symbol'} is in a section that is left out")
    target = layout.places[symbol.section] + symbol.value if inside else 0
    if not inside and symbol.name in layout.named:
        inside, target = True, layout.named[symbol.name]
    if kind == _ABSOLUTE[machine]:
        layout.relative.append(CodeSlot(place, "" if inside else symbol.name, target + addend))
        return
    if machine == _RISCV and kind == _R_RELAX:
        return
    if kind in _FROM_SLOT[machine]:
        if inside:
            raise CannotLink(f"{symbol.name} is reached as if it were outside")
        target = layout.slot(symbol.name)
    elif not inside:
        if kind not in _CALLS[machine]:
            raise CannotLink(f"relocation {kind} of {symbol.name}, which is outside")
        target = layout.stub(symbol.name)
    _RELOCATE[machine](layout, kind, place, target + addend)


def _relocate_aarch64(layout: _Layout, kind: int, place: int, target: int) -> None:
    if kind in _CALLS[_AARCH64]:
        _patch(layout, place, (_fits(target - place, 28) >> 2) & 0x3FFFFFF)
    elif kind == _PREL32:
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


def _relocate_x86(layout: _Layout, kind: int, place: int, target: int) -> None:
    if kind not in (_X_PC32, *_CALLS[_X86_64], *_FROM_SLOT[_X86_64]):
        raise CannotLink(f"relocation {kind} is not known")
    struct.pack_into("<i", layout.code, place, _fits(target - place, 32))


def _relocate_riscv(layout: _Layout, kind: int, place: int, target: int) -> None:
    distance = target - place
    if kind in _CALLS[_RISCV]:
        _patch(layout, place, _upper(distance))
        _patch(layout, place + 4, (distance & 0xFFF) << 20)
    elif kind in (_R_HIGH, _R_GOT):
        layout.halves[place] = distance
        _patch(layout, place, _upper(distance))
    elif kind in _LOW:
        low = layout.halves[target] & 0xFFF
        _patch(layout, place, low << 20 if kind == _R_LOW_LOAD else (low >> 5) << 25 | (low & 31) << 7)
    elif kind == _R_PC32:
        struct.pack_into("<i", layout.code, place, _fits(distance, 32))
    elif kind in _R_SUMS:
        form, sign = _R_SUMS[kind]
        limit = 1 << 8 * struct.calcsize(form)
        before = struct.unpack_from(form, layout.code, place)[0]
        struct.pack_into(form, layout.code, place, (before + sign * target) % limit)
    elif kind in _R_JUMPS:
        form, bits, runs = _R_JUMPS[kind]
        value = _fits(distance, bits)
        _patch(layout, place, sum((value >> first & (1 << count) - 1) << to for first, count, to in runs), form)
    else:
        raise CannotLink(f"relocation {kind} is not known")


_RELOCATE = {_AARCH64: _relocate_aarch64, _X86_64: _relocate_x86, _RISCV: _relocate_riscv}


def _upper(distance: int) -> int:
    """The upper 20 bits of a distance, to which the lower 12 are added with their sign."""
    return _fits(distance + 0x800, 32) & 0xFFFFF000


def _fits(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise CannotLink("the image is too large")
    return value


def _patch(layout: _Layout, place: int, bits: int, form: str = "<I") -> None:
    """Set bits of an instruction that are zero there."""
    struct.pack_into(form, layout.code, place, struct.unpack_from(form, layout.code, place)[0] | bits)
