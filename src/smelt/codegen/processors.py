"""Processors that code is compiled for ahead of time, as data.

    described("x86-64-v3")             AVX2 and fused multiply-add, ELF for Linux
    described("aarch64-android")       the same processor as "aarch64", in an object for another system
    described("host")                  this machine, with the features named that the code relies on

`required_features` of a target lists every feature that its code uses beyond the base architecture, in LLVM's names.
The loader checks them first.
"""

from dataclasses import replace

from smelt.base.errors import SmeltError
from smelt.codegen.cpu.target import AARCH64, describe_host, x86
from smelt.device import Target

HOST = "host"

_V2 = ("cx16", "popcnt", "sahf", "sse3", "ssse3", "sse4.1", "sse4.2")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


def _x86(level: int, features: tuple[str, ...], bits: int) -> Target:
    is_wide, name = bits == 512, f"x86-64-v{level}"
    return x86(
        bits,
        name=name,
        triple="x86_64-unknown-linux-gnu",
        cpu=name,
        features="-prefer-256-bit" if is_wide else "",
        has_fma=level >= 3,
        tune_cpu="znver4" if is_wide else "generic",
        has_half=level >= 3,
        required_features=features,
    )


_RISCV = Target(
    name="riscv64",
    triple="riscv64-unknown-linux-gnu",
    cpu="generic-rv64",
    features="+m,+a,+f,+d,+c,-relax",  # nothing is to be moved by whoever links it
    # There are no vectors: two floats side by side are two registers of 32, a tile of sums is as for 16 of such pairs.
    vector_bits=64,
    vector_registers=16,
    has_fma=True,
    transpose_register_bits=64,
    has_half=False,
    abi="lp64d",
)

_WASM = replace(
    _RISCV,
    name="wasm32",
    triple="wasm32-unknown-unknown",
    cpu="generic",
    features="+simd128,+bulk-memory,+nontrapping-fptoint,+sign-ext,+mutable-globals",
    vector_bits=128,
    has_fma=False,  # there are some that may round once or twice, as the engine likes
    has_nan_minmax=True,
    transpose_register_bits=128,
    pointer_bytes=4,
    abi="",
    required_features=("simd128",),
)

PROCESSORS: dict[str, Target] = {
    target.name: target
    for target in (
        _x86(2, _V2, 128),
        _x86(3, _V3, 256),
        _x86(4, _V4, 512),
        AARCH64,
        _RISCV,
        replace(
            _RISCV,
            name="riscv64-v",
            features="+m,+a,+f,+d,+c,+v,-relax",
            vector_bits=128,
            vector_registers=32,
            transpose_register_bits=128,
            required_features=("v",),
        ),
        _WASM,
    )
}

_X86, _ARM, _RISC = "x86_64", "aarch64", "riscv64"
# System → what it makes of a triple, and the architectures it runs on. Linux is where nothing is said.
SYSTEMS = {
    "android": ("linux-android21", (_X86, _ARM, _RISC)),
    "macos": ("apple-macosx11.0", (_X86, _ARM)),
    "ios": ("apple-ios14.0", (_ARM,)),
    "windows": ("pc-windows-msvc", (_X86, _ARM)),
    "none": ("unknown-none-elf", (_X86, _ARM, _RISC)),
}

# Of the host's features, those that code for it may use: no loader has to know any other.
HOST_FEATURES = {
    _X86: (*_V4, "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni"),
    _ARM: ("lse", "rdm", "fullfp16", "dotprod", "fp16fml", "bf16", "i8mm", "rcpc"),
    _RISC: ("v", "zba", "zbb", "zbs", "zfh"),
}
_BASELINES = {_X86: "x86-64", _ARM: "generic", _RISC: "generic-rv64"}


def _for_systems(target: Target) -> list[Target]:
    architecture = target.triple.partition("-")[0]
    targets = []
    for system, (triple, runs_on) in SYSTEMS.items():
        if architecture in runs_on:
            said = "arm64" if "apple" in triple and architecture == _ARM else architecture
            targets.append(replace(target, name=f"{target.name}-{system}", triple=f"{said}-{triple}"))
    return targets


TARGETS: dict[str, Target] = PROCESSORS | {
    each.name: each for target in PROCESSORS.values() for each in _for_systems(target)
}


def described(name: str) -> Target:
    """The target called `name`."""
    if name == HOST:
        return host()
    if name not in TARGETS:
        raise SmeltError("SM030", f"there is no target {name!r}", hint=f"choose from {HOST}, {', '.join(TARGETS)}")
    return TARGETS[name]


def host() -> Target:
    """This machine, as far as its features have names that a loader knows."""
    target = describe_host()
    architecture = target.triple.partition("-")[0].replace("arm64", "aarch64")
    if architecture not in _BASELINES:
        return replace(target, name=HOST)
    there = set(target.features.split(","))
    used = tuple(each for each in HOST_FEATURES[architecture] if f"+{each}" in there)
    shared = next((each for each in PROCESSORS.values() if each.triple.startswith(architecture)), target)
    said = [f"+{each}" for each in used]
    if architecture != _X86:
        said = [*shared.features.split(","), *said]
    return replace(
        target,
        name=HOST,
        cpu=_BASELINES[architecture],
        features=",".join(said),
        tune_cpu=target.tune_cpu or target.cpu,
        abi=shared.abi,
        required_features=used,
    )
