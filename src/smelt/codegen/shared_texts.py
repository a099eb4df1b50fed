"""Kernels that differ only in constants share one function; the constants are passed as arguments. Layers of an image
model are an example.

    k3: … mul i64 %t1, 784 … icmp slt i64 %t9, 784        f3: … mul i64 %t1, %num0 … icmp slt i64 %t9, %num0
    k8: … mul i64 %t1, 196 … icmp slt i64 %t9, 196   →    k3, k8: f3 with an array of their numbers behind the buffers

The generated texts are compared, so everything that depends on a size, such as the number of lanes or whether there is
a last vector, has been chosen already. Constants are 64-bit extents, strides and offsets, and scalar floats. A division
by one becomes a product with its reciprocal, which is as fast as division by a constant.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.generator import EntryCode, SharedText
from smelt.ir.kernel import AnyKernel, Kernel

MOST = 1 << 32  # points, and elements of a buffer: what is divided is less, and so the reciprocal is exact
_HEADS = "add|sub|mul|and|or|xor|shl|lshr|icmp \\w+|phi"
_FUNCTIONS = r"i64 @(?:smelt_parallel_for|llvm\.[us](?:min|max)\.i64)|void @(?:smelt|product)\.[\w.]+"
_LINE = re.compile(
    rf"^  (?:%\w+ = )?(?:(?:{_HEADS}|(?P<divides>udiv|urem)) i64 |getelementptr [^,]+, ptr [^,]+, (?=i64 -?\d+$)"
    r"|(?:fadd|fsub|fmul|fdiv) (?P<float><?(?:\d+ x )?(?:float|double)>?) (?=.*0x)"
    rf"|(?P<typed>select i1 |call (?:{_FUNCTIONS})\())(?P<operands>.*)$",
    re.MULTILINE,
)
_INTEGER = re.compile(r"(?<![\w%@.])-?\d+(?![\w.])")
_TYPED = re.compile(r"(?<=\bi64 )-?\d+(?![\w.])")
_FLOAT = re.compile(r"(splat \(\w+ )?(0x[0-9A-F]{16})(?(1)\))")
_OWN = re.compile(r"^@SYM\.numbers = private constant \[\d+ x i64\] \[(.*)\]\n", re.MULTILINE)
_HEAD = re.compile(r"^define [^\n]*\(ptr %buffers, [^\n]*\{\n(?:entry:\n)?", re.MULTILINE)
_ENTRY = "define void @SYM(ptr %buffers, i64 %threads, ptr %workspace)"
_USED = re.compile(r"%num(\d+)\b")
_COPY = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"


class _Number(NamedTuple):
    """A number in a text: an operand of 64 bits, a divisor, or a float or double, or a vector of such, by the bits of
    a double."""

    kind: str
    value: int


@dataclass(frozen=True, slots=True)
class _Text:
    """A kernel's functions split at their numbers; `own`: the numbers it reads by address."""

    pieces: tuple[str, ...]
    numbers: tuple[_Number, ...]
    own: tuple[int, ...]


def shared_texts(
    kernels: Sequence[AnyKernel],
    codes: Mapping[int, EntryCode],
    symbols: Sequence[str],
    budget: RewriteBudget,
    of: str = "",
) -> list[SharedText]:
    """Those of `codes`, which are by place, that have relatives among them. `of`: what `bisect` calls their program."""
    budget.stage = f"{of}generate, share texts"
    groups: dict[tuple[object, ...], dict[int, _Text]] = {}
    for place, code in codes.items():
        kernel = kernels[place]
        if not isinstance(kernel, Kernel) or code.sizes or code.facts or code.phases or not _is_bounded(kernel):
            continue
        text = _parsed(code.functions, symbols[place])
        helpers = frozenset(name for name, _ in code.helpers)
        key = (text.pieces, tuple(number.kind for number in text.numbers), len(kernel.parameters), helpers)
        groups.setdefault(key, {})[place] = text
    shared = []
    for texts in groups.values():
        if len(texts) > 1 and budget.take(*(kernels[place].name for place in texts)):
            first = min(texts)
            body = _Body.of(symbols[first] + ".body", texts, len(kernels[first].parameters))
            if body is not None:
                shared.append(body.shared({place: codes[place] for place in texts}, symbols))
    return shared


def _is_bounded(kernel: Kernel) -> bool:
    sizes = (kernel.row_count * kernel.col_count, *(buffer.size for buffer in kernel.buffers))
    return all(type(size) is int and size < MOST for size in sizes)


def _parsed(functions: str, symbol: str) -> _Text:
    text = re.sub(rf"@{re.escape(symbol)}(?!\w)", "@SYM", functions)
    own = _OWN.search(text)
    if own is not None:
        text = text[: own.start()] + text[own.end() :]
    pieces: list[str] = []
    numbers: list[_Number] = []
    last = 0
    for line in _LINE.finditer(text):
        start, end = line.span("operands")
        if (kind := line["float"]) is not None:
            matches = [(each, _Number(kind, int(each[2], 16))) for each in _FLOAT.finditer(text, start, end)]
        else:
            kind, wanted = "divisor" if line["divides"] else "i64", _TYPED if line["typed"] else _INTEGER
            matches = [(each, _Number(kind, int(each[0]))) for each in wanted.finditer(text, start, end)]
        for each, number in matches:
            pieces.append(text[last : each.start()])
            numbers.append(number)
            last = each.end()
    pieces.append(text[last:])
    values = tuple(int(each.removeprefix("i64 ")) for each in own[1].split(", ")) if own is not None else ()
    return _Text(tuple(pieces), tuple(numbers), values)


@dataclass(frozen=True, slots=True)
class _Body:
    """The text that kernels share. `numbers`: those of each kernel by its place, in front of its own."""

    name: str
    text: str
    numbers: dict[int, list[int]]
    own: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, name: str, texts: dict[int, _Text], buffers: int) -> "_Body | None":
        """None if a number is needed where it cannot be had, or divides by one."""
        columns: dict[tuple[_Number, ...], int] = {}
        pieces = next(iter(texts.values())).pieces
        parts = []
        for piece, values in zip(pieces, zip(*(text.numbers for text in texts.values()), strict=True), strict=False):
            parts.append(piece)
            if len(set(values)) == 1:
                parts.append(_literal(values[0]))
                continue
            if values[0].kind == "divisor" and min(number.value for number in values) < 2:
                return None
            parts.append(f"%num{columns.setdefault(values, len(columns))}")
        text = _dividing("".join((*parts, pieces[-1])))
        kinds = [column[0].kind for column in columns]
        whole = _with_numbers(text, kinds, buffers)
        if whole is None:
            return None
        numbers = {
            place: [word for column in columns for word in _words(column[row])] for row, place in enumerate(texts)
        }
        return cls(name, whole, numbers, {place: text.own for place, text in texts.items()})

    def shared(self, codes: Mapping[int, EntryCode], symbols: Sequence[str]) -> SharedText:
        first = next(iter(codes.values()))
        declared = frozenset({_COPY}).union(*(code.declarations for code in codes.values()))
        body = EntryCode(self.text.replace("@SYM", f"@{self.name}"), declared, first.helpers, 0)
        entries = {}
        for place, code in codes.items():
            entries[place] = EntryCode(self._entry(place, symbols[place]), frozenset(), (), code.per_thread_workspace)
        return SharedText(body, entries)

    def _entry(self, place: int, symbol: str) -> str:
        words = [*self.numbers[place], *self.own[place]]
        elements = ", ".join(f"i64 {word}" for word in words)
        return f"""@{symbol}.given = private constant [{len(words)} x i64] [{elements}]
define void @{symbol}(ptr %buffers, i64 %threads, ptr %workspace) nounwind {{
  tail call void @{self.name}(ptr %buffers, i64 %threads, ptr %workspace, ptr @{symbol}.given)
  ret void
}}
"""


def _literal(number: _Number) -> str:
    if number.kind in ("i64", "divisor"):
        return str(number.value)
    literal = f"0x{number.value:016X}"
    return f"splat ({_element(number.kind)} {literal})" if number.kind.startswith("<") else literal


def _element(kind: str) -> str:
    """Of a type that may be a vector."""
    return kind.strip("<>").split(" x ")[-1]


def _words(number: _Number) -> tuple[int, ...]:
    """The array elements of a number. A divisor has two: itself and ⌈2⁶⁴ / divisor⌉."""
    if number.kind != "divisor":
        return (_signed(number.value),)
    return number.value, _signed(-(-(1 << 64) // number.value))


def _signed(word: int) -> int:
    signed: int = struct.unpack("<q", struct.pack("<Q", word & (1 << 64) - 1))[0]
    return signed


def _dividing(text: str) -> str:
    """Division by a number that is given, as the upper half of the product with its reciprocal."""

    def product(line: re.Match[str]) -> str:
        out, operation, value, number = line.groups()
        quotient = out if operation == "udiv" else f"{out}.q"
        lines = [
            f"  {out}.w = zext i64 {value} to i128",
            f"  {out}.m = mul i128 {out}.w, {number}.r",
            f"  {out}.h = lshr i128 {out}.m, 64",
            f"  {quotient} = trunc i128 {out}.h to i64",
        ]
        if operation == "urem":
            lines += [f"  {out}.p = mul i64 {quotient}, {number}", f"  {out} = sub i64 {value}, {out}.p"]
        return "\n".join(lines)

    return re.sub(r"^  (%\w+) = (udiv|urem) i64 (%\w+), (%num\d+)$", product, text, flags=re.MULTILINE)


def _with_numbers(text: str, kinds: Sequence[str], buffers: int) -> str | None:
    """A text whose functions read the numbers they use, from an array behind the buffers; the entry is given it and
    puts it there. None if one uses some and has no buffers."""
    places, words = [], 0
    for kind in kinds:
        places.append(words)
        words += 2 if kind == "divisor" else 1
    heads = list(_HEAD.finditer(text))
    if not heads or text.count("\ndefine ") + text.startswith("define ") != len(heads) or _ENTRY not in text:
        return None
    parts = [text[: heads[0].start()]]
    for head, after in zip(heads, (*(each.start() for each in heads[1:]), len(text)), strict=True):
        first, body = head[0], text[head.end() : after]
        used = sorted({int(each) for each in _USED.findall(body)})
        if _ENTRY in first:
            parts.append(first.replace(_ENTRY, _ENTRY.replace("%buffers", "%given")[:-1] + ", ptr %numbers)"))
            parts.append(_copied(buffers))
        else:
            parts.append(first)
            if used or "@SYM.numbers" in body:
                parts.append(f"  %numbers.at = getelementptr ptr, ptr %buffers, i64 {buffers}\n")
                parts.append("  %numbers = load ptr, ptr %numbers.at, !invariant.load !{}\n")
        parts += [_loaded(number, kinds[number], places[number]) for number in used]
        if "@SYM.numbers" in body:
            parts.append(f"  %numbers.own = getelementptr i64, ptr %numbers, i64 {words}\n")
            body = re.sub(r"@SYM\.numbers(?!\w)", "%numbers.own", body)
        parts.append(body)
    return "".join(parts)


def _copied(buffers: int) -> str:
    """The entry's own buffers: those given, and where the numbers are."""
    return f"""  %buffers = alloca [{buffers + 1} x ptr]
  call void @llvm.memcpy.p0.p0.i64(ptr %buffers, ptr %given, i64 {8 * buffers}, i1 false)
  %numbers.at = getelementptr ptr, ptr %buffers, i64 {buffers}
  store ptr %numbers, ptr %numbers.at
"""


def _loaded(number: int, kind: str, place: int) -> str:
    name = f"%num{number}"
    lines = [f"  {name}.at = getelementptr i64, ptr %numbers, i64 {place}"]
    if kind in ("i64", "divisor"):
        lines.append(f"  {name} = load i64, ptr {name}.at, align 8, !invariant.load !{{}}")
    else:
        lines += _loaded_float(name, kind)
    if kind == "divisor":
        lines.append(f"  {name}.rat = getelementptr i64, ptr %numbers, i64 {place + 1}")
        lines.append(f"  {name}.rl = load i64, ptr {name}.rat, align 8, !invariant.load !{{}}")
        lines.append(f"  {name}.r = zext i64 {name}.rl to i128")
    return "\n".join(lines) + "\n"


def _loaded_float(name: str, kind: str) -> list[str]:
    element = _element(kind)
    lines = [f"  {name}.d = load double, ptr {name}.at, align 8, !invariant.load !{{}}"]
    narrow = f"fptrunc double {name}.d to float" if element == "float" else f"fadd double {name}.d, -0.0"
    if not kind.startswith("<"):
        return [*lines, f"  {name} = {narrow}"]
    lanes = kind[1:].split(" x ")[0]
    return [
        *lines,
        f"  {name}.s = {narrow}",
        f"  {name}.v = insertelement {kind} poison, {element} {name}.s, i64 0",
        f"  {name} = shufflevector {kind} {name}.v, {kind} poison, <{lanes} x i32> zeroinitializer",
    ]
