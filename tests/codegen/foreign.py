"""Kernels run on processors that this machine is not: under qemu, and WebAssembly under node.

    run_on("riscv64-v", [softmax], [[x, y]], threads=2)      x and y are as the kernel leaves them there

An image and a driver of ours are linked into an executable without a linker: a program that reads the memory of all
buffers from its input, calls the kernels, and writes the memory out. So what is tested are images as they are deployed.
"""

import json
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from smelt.codegen.ahead_of_time import KernelEntry, find_target, write_for
from smelt.codegen.llvm.compile import make_all_targets_ready, object_codes
from smelt.codegen.llvm.link import link_all, undefined
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.llvm.support import SUPPORT, support_text
from smelt.codegen.llvm.wasm_module import as_module
from smelt.codegen.static.build import StaticModel, object_with_support
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.runtime.program.code_image import Image
from smelt.torch_abi.symbols import PARALLEL_FOR

_BASE = 0x10000000
_MEMORY = 64 << 20  # bytes for buffers
_PAGE = 4096
_QEMU = {
    "x86_64": ("qemu-x86_64-static", "qemu-x86_64"),
    "riscv64": ("qemu-riscv64-static", "qemu-riscv64"),
    "aarch64": ("qemu-aarch64-static", "qemu-aarch64"),
}
_CPU = {"riscv64": "rv64,v=false", "riscv64-v": "rv64,v=true,vlen=256", "x86-64-v2": "Nehalem", "x86-64-v3": "Haswell"}
RUN_BY_QEMU = ("x86-64-v2", "x86-64-v3", "aarch64", "riscv64", "riscv64-v")  # it has no AVX-512

# Machine, and code: first what calls the address behind it and exits with the result, then a system call of three
# arguments, with the numbers of read and write.
_START = {
    "x86_64": (62, bytes.fromhex("4883e4f0 48b8") , bytes.fromhex("ffd0 89c7 b83c000000 0f05"), 0, 1),
    "aarch64": (183, struct.pack("<5I", 0x580000A9, 0xD63F0120, 0xD2800BA8, 0xD4000001, 0xD503201F), b"", 63, 64),
    "riscv64": (
        243, struct.pack("<6I", 0x297, 0x0182B283, 0x000280E7, 0x05D00893, 0x73, 0x13), b"", 63, 64
    ),
}  # fmt: skip
_SYSCALL = {
    "x86_64": bytes.fromhex("4889f8 4889f7 4889d6 4889ca 0f05 c3"),
    "aarch64": struct.pack("<6I", 0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0),
    "riscv64": struct.pack("<6I", 0x00050893, 0x00058513, 0x00060593, 0x00068613, 0x73, 0x8067),
}

# What kernels share their points out by: one thread runs all chunks.
_SERIAL_PARALLEL_FOR = """
define hidden i64 @smelt_parallel_for(ptr %part, ptr %buffers, ptr %workspace, i64 %threads, i64 %most, i64 %extent, i64 %bytes) {
entry:
  %few = icmp slt i64 %threads, %most
  %wanted = select i1 %few, i64 %threads, i64 %most
  %any = icmp sgt i64 %wanted, 1
  %chunks = select i1 %any, i64 %wanted, i64 1
  br label %body
body:
  %chunk = phi i64 [ 0, %entry ], [ %next, %body ]
  %first = phi i64 [ 0, %entry ], [ %last, %body ]
  %next = add i64 %chunk, 1
  %scaled = mul i64 %next, %extent
  %last = udiv i64 %scaled, %chunks
  %offset = mul i64 %chunk, %bytes
  %mine = getelementptr i8, ptr %workspace, i64 %offset
  %ends = icmp eq i64 %next, %chunks
  call void %part(ptr %buffers, ptr %mine, i64 %first, i64 %last, i1 %ends)
  br i1 %ends, label %exit, label %body
exit:
  ret i64 %chunks
}
"""  # noqa: E501

_DRIVER = """
declare i64 @smelt_system(i64, i64, i64, i64)
@smelt_memory = external global i8
@functions = private constant [{count} x ptr] [{functions}]
{parallel_for}
{declarations}
define i32 @smelt_main() {{
entry:
  %base = ptrtoint ptr @smelt_memory to i64
  br label %read
read:
  %n = phi i64 [ 0, %entry ], [ %n.next, %read ]
  %at = add i64 %base, %n
  %left = sub i64 {memory}, %n
  %got = call i64 @smelt_system(i64 {read}, i64 0, i64 %at, i64 %left)
  %more = icmp sgt i64 %got, 0
  %n.next = add i64 %n, %got
  br i1 %more, label %read, label %run
run:
  %calls = load i64, ptr @smelt_memory
  br label %call
call:
  %i = phi i64 [ 0, %run ], [ %i.next, %called ]
  %table = phi i64 [ 1, %run ], [ %table.next, %called ]
  %record = getelementptr i64, ptr @smelt_memory, i64 %table
  %which = load i64, ptr %record
  %threads.at = getelementptr i64, ptr %record, i64 1
  %threads = load i64, ptr %threads.at
  %workspace.at = getelementptr i64, ptr %record, i64 2
  %workspace.offset = load i64, ptr %workspace.at
  %workspace = getelementptr i8, ptr @smelt_memory, i64 %workspace.offset
  %count.at = getelementptr i64, ptr %record, i64 3
  %count = load i64, ptr %count.at
  %buffers = getelementptr i64, ptr %record, i64 4
  br label %pointer
pointer:
  %p = phi i64 [ 0, %call ], [ %p.next, %pointer ]
  %slot = getelementptr i64, ptr %buffers, i64 %p
  %offset = load i64, ptr %slot
  %address = add i64 %base, %offset
  store i64 %address, ptr %slot
  %p.next = add i64 %p, 1
  %p.more = icmp slt i64 %p.next, %count
  br i1 %p.more, label %pointer, label %called
called:
  %function.at = getelementptr ptr, ptr @functions, i64 %which
  %function = load ptr, ptr %function.at
  call void %function(ptr %buffers, i64 %threads, ptr %workspace)
  %size = add i64 %count, 4
  %table.next = add i64 %table, %size
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %calls
  br i1 %i.more, label %call, label %write
write:
  %w = phi i64 [ 0, %called ], [ %w.next, %write ]
  %from = add i64 %base, %w
  %rest = sub i64 %n, %w
  %put = call i64 @smelt_system(i64 {write}, i64 1, i64 %from, i64 %rest)
  %w.next = add i64 %w, %put
  %w.more = icmp slt i64 %w.next, %n
  br i1 %w.more, label %write, label %done
done:
  ret i32 0
}}
"""

# Memory: how many words are addresses, where those are, and then eight words: the offsets of session, state and memory,
# how many bytes that has, the offsets of inputs and outputs, and room for the result and for where memory is.
_STATIC_DRIVER = """
declare i64 @smelt_system(i64, i64, i64, i64)
@smelt_memory = external global i8
declare void @{name}_init(ptr, ptr, ptr, i64)
declare i32 @{name}_run(ptr, ptr, ptr)
define i32 @smelt_main() {{
entry:
  %base = ptrtoint ptr @smelt_memory to i64
  br label %read
read:
  %n = phi i64 [ 0, %entry ], [ %n.next, %read ]
  %at = add i64 %base, %n
  %left = sub i64 {memory}, %n
  %got = call i64 @smelt_system(i64 {read}, i64 0, i64 %at, i64 %left)
  %more = icmp sgt i64 %got, 0
  %n.next = add i64 %n, %got
  br i1 %more, label %read, label %pointer
pointer:
  %p = phi i64 [ 0, %read ], [ %p.next, %pointer ]
  %p.next = add i64 %p, 1
  %entry.at = getelementptr i64, ptr @smelt_memory, i64 %p.next
  %word = load i64, ptr %entry.at
  %slot = getelementptr i8, ptr @smelt_memory, i64 %word
  %offset = load i64, ptr %slot
  %address = add i64 %base, %offset
  store i64 %address, ptr %slot
  %count = load i64, ptr @smelt_memory
  %p.more = icmp slt i64 %p.next, %count
  br i1 %p.more, label %pointer, label %run
run:
  %after = add i64 %count, 1
  %words = getelementptr i64, ptr @smelt_memory, i64 %after
  %session.at = load i64, ptr %words
  %session = getelementptr i8, ptr @smelt_memory, i64 %session.at
  %w1 = getelementptr i64, ptr %words, i64 1
  %state.at = load i64, ptr %w1
  %state = getelementptr i8, ptr @smelt_memory, i64 %state.at
  %w2 = getelementptr i64, ptr %words, i64 2
  %memory.at = load i64, ptr %w2
  %memory = getelementptr i8, ptr @smelt_memory, i64 %memory.at
  %w3 = getelementptr i64, ptr %words, i64 3
  %bytes = load i64, ptr %w3
  %w4 = getelementptr i64, ptr %words, i64 4
  %inputs.at = load i64, ptr %w4
  %inputs = getelementptr i8, ptr @smelt_memory, i64 %inputs.at
  %w5 = getelementptr i64, ptr %words, i64 5
  %outputs.at = load i64, ptr %w5
  %outputs = getelementptr i8, ptr @smelt_memory, i64 %outputs.at
  call void @{name}_init(ptr %session, ptr %state, ptr %memory, i64 %bytes)
  %code = call i32 @{name}_run(ptr %session, ptr %inputs, ptr %outputs)
  %wide = sext i32 %code to i64
  %w6 = getelementptr i64, ptr %words, i64 6
  store i64 %wide, ptr %w6
  br label %write
write:
  %w = phi i64 [ 0, %run ], [ %w.next, %write ]
  %from = add i64 %base, %w
  %rest = sub i64 %n, %w
  %put = call i64 @smelt_system(i64 {write}, i64 1, i64 %from, i64 %rest)
  %w.next = add i64 %w, %put
  %w.more = icmp slt i64 %w.next, %n
  br i1 %w.more, label %write, label %done
done:
  ret i32 0
}}
"""

_NODE = """
import fs from "node:fs";
const module = await WebAssembly.compile(fs.readFileSync(process.argv[2]));
const pow = (a, b) => (a === 1 || (a === -1 && Math.abs(b) === Infinity) ? 1 : a ** b);
const { exports } = await WebAssembly.instantiate(module, { env: { pow } });
const given = fs.readFileSync(0), calls = JSON.parse(process.argv[3]), start = exports.__heap_base.value;
const pages = Math.ceil((start + given.length) / 65536) - exports.memory.buffer.byteLength / 65536;
if (pages > 0) exports.memory.grow(pages);
const memory = new Uint8Array(exports.memory.buffer, start, given.length), words = new DataView(exports.memory.buffer);
memory.set(given);
for (const [symbol, threads, table, buffers, workspace] of calls) {
  buffers.forEach((offset, i) => words.setUint32(start + table + 4 * i, start + offset, true));
  exports[symbol](start + table, BigInt(threads), start + workspace);
}
fs.writeSync(1, memory);
"""


def runner(name: str) -> list[str]:
    """The command that runs an executable for a target; skips the test where there is none."""
    architecture = find_target(name).triple.partition("-")[0]
    if architecture.startswith("wasm"):
        node = shutil.which("node")
        if node is None:
            pytest.skip("there is no node")
        return [node]
    if sys.platform != "linux":
        pytest.skip("qemu runs programs of Linux on Linux alone")
    if architecture == platform.machine() and name in ("aarch64", "x86-64-v2"):
        return []
    qemu = next((found for each in _QEMU[architecture] if (found := shutil.which(each))), None)
    if qemu is None:
        pytest.skip(f"there is no {_QEMU[architecture][0]}")
    return [qemu, *(("-cpu", _CPU[name]) if name in _CPU else ())]


class EmulatorFailed(Exception):
    """An emulator ended by a mistake of its own."""


def run_on(
    name: str,
    kernels: Sequence[Kernel],
    tensors: Sequence[Sequence[torch.Tensor]],
    tmp_path: Path,
    threads: int = 1,
    sizes: Mapping[str, int] | None = None,
) -> list[int]:
    """Run each kernel on its tensors, which are left as it leaves them. The places of those that the emulator cannot
    run, for a mistake of its own: before version 8 qemu fails at some conversions by RISC-V's vectors."""
    try:
        _run_all(name, kernels, tensors, tmp_path, threads, sizes)
    except EmulatorFailed:
        if len(kernels) == 1:
            return [0]
        half = len(kernels) // 2
        first = run_on(name, kernels[:half], tensors[:half], tmp_path, threads, sizes)
        second = run_on(name, kernels[half:], tensors[half:], tmp_path, threads, sizes)
        return [*first, *(half + place for place in second)]
    return []


def _run_all(
    name: str,
    kernels: Sequence[Kernel],
    tensors: Sequence[Sequence[torch.Tensor]],
    tmp_path: Path,
    threads: int,
    sizes: Mapping[str, int] | None,
) -> None:
    command, target = runner(name), find_target(name)
    is_wasm = target.pointer_bytes == 4
    entries, program = (_wasm if is_wasm else _executable)(kernels, target)
    memory, calls, known = _Memory(), [], sizes or {}
    for entry, given in zip(entries, tensors, strict=True):
        params = [each.evaluate(lambda symbol: known[symbol.text]) for each in entry.params]
        workspace = entry.workspace if isinstance(entry.workspace, int) else 1 << 20
        if params:
            given = [*given, torch.tensor(params)]
        offsets = [memory.add(_bytes(each)) for each in given]
        calls.append((entry.symbol, offsets, memory.add(bytes(workspace * threads + 64))))
    if is_wasm:
        path = tmp_path / "module.wasm"
        tables = [memory.add(bytes(4 * len(buffers) + 4)) for _, buffers, _ in calls]
        said = [(s, threads, t, b, w) for (s, b, w), t in zip(calls, tables, strict=True)]
        script = tmp_path / "run.mjs"
        script.write_text(_NODE)
        argv = [*command, str(script), str(path), json.dumps(said)]
        path.write_bytes(program)
        given_bytes = bytes(memory.data)
    else:
        path = tmp_path / "program"
        path.write_bytes(program)
        path.chmod(0o755)
        argv = [*command, str(path)]
        given_bytes = memory.with_table([(int(s[1:]), threads, w, b) for s, b, w in calls])
    done = subprocess.run(argv, input=given_bytes, capture_output=True, timeout=300, check=False)
    if b"target/riscv/translate.c" in done.stderr and b"Assertion" in done.stderr:
        raise EmulatorFailed
    assert done.returncode == 0, f"{argv[0]}: {done.returncode} {done.stderr.decode(errors='replace')[-2000:]}"
    assert len(done.stdout) == len(given_bytes)
    out = done.stdout[len(given_bytes) - len(memory.data) :]
    for (_, offsets, _), given in zip(calls, tensors, strict=True):
        for offset, tensor in zip(offsets, given, strict=False):
            size = tensor.numel() * tensor.itemsize
            if size:
                flat = torch.frombuffer(bytearray(out[offset : offset + size]), dtype=tensor.dtype)
                tensor.copy_(flat.reshape(tensor.shape))


def run_static(
    made: StaticModel, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], tmp_path: Path
) -> int:
    """Run an object without a loader once, on inputs in the order of its header; the outputs are filled. Its code."""
    command, target = runner(name), find_target(name)
    make_all_targets_ready()
    *_, read, write = _START[target.triple.partition("-")[0]]
    driver = _STATIC_DRIVER.format(name=made.name, memory=_MEMORY, read=read, write=write)
    path = tmp_path / "program"
    path.write_bytes(executable([made.object, *object_codes([driver], target)], target))
    path.chmod(0o755)
    rank = int(made.header.partition("int64_t shape[")[2].partition("]")[0])
    state = int(made.header.partition("_STATE_BYTES ")[2].split()[0])
    pointers = len(inputs) + len(outputs)
    memory = _Memory()
    memory.add(bytes(8 * (1 + pointers + 8)))
    session, state_at = memory.add(bytes(64)), memory.add(bytes(state))
    tables = []
    for tensors in (inputs, outputs):
        places = [memory.add(_bytes(tensor)) for tensor in tensors]
        rows = [
            struct.pack(f"<qq8x{rank}q", at, each.numel() * each.itemsize, *each.shape, *[0] * (rank - each.dim()))
            for at, each in zip(places, tensors, strict=True)
        ]
        tables.append((memory.add(b"".join(rows)), places))
    end = -(-len(memory.data) // 64) * 64
    fields = [first + number * (24 + 8 * rank) for first, places in tables for number in range(len(places))]
    words = [pointers, *fields, session, state_at, end, _MEMORY - end, tables[0][0], tables[1][0], 0, 0]
    struct.pack_into(f"<{len(words)}q", memory.data, 0, *words)
    done = subprocess.run([*command, path], input=bytes(memory.data), capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, f"{name}: {done.returncode} {done.stderr.decode(errors='replace')[-2000:]}"
    for at, tensor in zip(tables[1][1], outputs, strict=True):
        size = tensor.numel() * tensor.itemsize
        tensor.copy_(torch.frombuffer(bytearray(done.stdout[at : at + size]), dtype=tensor.dtype).reshape(tensor.shape))
    code: int = struct.unpack_from("<q", done.stdout, 8 * (1 + pointers + 6))[0]
    return code


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


class _Memory:
    """What a program reads and writes: buffers one after the other."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, content: bytes) -> int:
        self.data += bytes(-len(self.data) % 64)
        self.data += content
        return len(self.data) - len(content)

    def with_table(self, calls: Sequence[tuple[int, int, int, list[int]]]) -> bytes:
        """Behind a table of the calls, whose offsets count from its start."""
        words = 1 + sum(4 + max(1, len(buffers)) for *_, buffers in calls)
        first = -(-8 * words // 64) * 64
        table = [len(calls)]
        for number, threads, workspace, buffers in calls:
            table += [number, threads, workspace + first, max(1, len(buffers)), *(each + first for each in buffers)]
            table += [0] * (not buffers)
        head = struct.pack(f"<{len(table)}q", *table)
        assert len(self.data) + first <= _MEMORY
        return head + bytes(first - len(head)) + bytes(self.data)


def _wasm(kernels: Sequence[Kernel], target: Target) -> tuple[tuple[KernelEntry, ...], bytes]:
    make_all_targets_ready()
    written = write_for(kernels, target)
    lines = print_module(written.modules[0]).splitlines()
    text = "\n".join(line for line in lines if not line.startswith(f"declare i64 @{PARALLEL_FOR}("))
    text += _SERIAL_PARALLEL_FOR
    return written.entries, as_module(object_with_support(text, target))


def _executable(kernels: Sequence[Kernel], target: Target) -> tuple[tuple[KernelEntry, ...], bytes]:
    """A program that runs kernels, and their entries."""
    make_all_targets_ready()
    architecture = target.triple.partition("-")[0]
    written = write_for(kernels, target, parts=2)
    symbols = sorted({entry.symbol for entry in written.entries}, key=lambda symbol: int(symbol[1:]))
    *_, read, write = _START[architecture]
    driver = _DRIVER.format(
        count=len(symbols),
        functions=", ".join(f"ptr @{symbol}" for symbol in symbols),
        parallel_for=_SERIAL_PARALLEL_FOR,
        declarations="\n".join(f"declare void @{symbol}(ptr, i64, ptr)" for symbol in symbols),
        memory=_MEMORY, read=read, write=write,
    )  # fmt: skip
    objects = object_codes([*map(print_module, written.modules), driver], target)
    missing = sorted({name for each in objects for name in undefined(each)} & SUPPORT.keys())
    if missing:
        objects += object_codes([support_text(missing, target)], target)
    return written.entries, executable(objects, target)


def executable(objects: Sequence[bytes], target: Target) -> bytes:
    """A static executable of objects, one of which has `smelt_main`: start code, their image, and memory behind it."""
    architecture = target.triple.partition("-")[0]
    machine, before, after, _, _ = _START[architecture]
    image = link_all(objects)
    syscall = _SYSCALL[architecture]
    first = _PAGE
    main = _BASE + first + dict(image.symbols)["smelt_main"]
    head = before + struct.pack("<Q", main) + after
    head += bytes(-len(head) % 16)
    end = -(-(first + len(image.code)) // _PAGE) * _PAGE
    addresses = {"smelt_system": _BASE + 256 + len(head), "smelt_memory": _BASE + end}
    code = _at(image, _BASE + first, addresses)
    content = bytes(256) + head + syscall
    content += bytes(first - len(content)) + code
    return _with_header(machine, content, end)


def _at(image: Image, base: int, addresses: Mapping[str, int]) -> bytes:
    """The bytes of an image that lies at `base`, with every slot filled."""
    code = bytearray(image.code)
    for slot in image.slots:
        if slot.name and slot.name not in addresses:
            pytest.skip(f"the kernels call {slot.name}, which the driver does not have")
        address = addresses[slot.name] if slot.name else base
        struct.pack_into("<Q", code, slot.offset, address + slot.addend)
    return bytes(code)


def _with_header(machine: int, content: bytes, end: int) -> bytes:
    """An ELF executable of one segment, all of it readable, writable and executable."""
    flags = 5 if machine == 243 else 0  # RISC-V: compressed instructions, and floats in registers of doubles
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _BASE + 256, 64, 0, flags, 64, 56, 1, 0, 0, 0)
    header += struct.pack("<IIQQQQQQ", 1, 7, 0, _BASE, _BASE, len(content), end + _MEMORY, _PAGE)
    return header + content[len(header) :]
