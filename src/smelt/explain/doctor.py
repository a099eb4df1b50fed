"""`smelt doctor`: is everything there that compiling needs, and does it work?

ok    Python       3.11.2 on aarch64
ok    llvmlite     0.50.0: neoverse-n1, vectors of 128 bits
FAIL  self-check   llvm: gradient of 0.weight: off by …
"""

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.base.options import is_disabled
from smelt.base.version import PYTHONS, why_not_tested
from smelt.device.host_library import HOST
from smelt.explain.verify import Compile, Judge, verify
from smelt.pipeline.cache.calibrated import kept
from smelt.runtime.cache import directory, open_store


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked; `good` is None for plain information."""

    name: str
    good: bool | None
    text: str

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAIL", None: "-"}[self.good]
        return f"{mark:5} {self.name:12} {self.text}"


def examine(compile: Compile) -> Iterator[Check]:
    """All checks, one by one: the last takes a second."""
    checks: tuple[tuple[str, Callable[[], tuple[bool | None, str]]], ...] = (
        ("Python", _python),
        ("torch", lambda: _torch(torch.__version__)),
        ("llvmlite", _llvmlite),
        ("threads", _threads),
        ("GPU", _gpu),
        ("layouts", _layouts),
        ("disk cache", _cache),
        ("calibration", _calibration),
        ("self-check", lambda: _self_check(compile, HOST)),
    )
    if _uses_gpu():
        checks += (("GPU check", lambda: _self_check(compile, torch.device("cuda"))),)
    for name, check in checks:
        try:
            good, text = check()
        except Exception as error:
            good, text = False, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        yield Check(name, good, text)


def _python() -> tuple[bool, str]:
    text = f"{platform.python_version()} on {platform.machine()}"
    if sys.version_info[:2] in PYTHONS:
        return True, text
    return False, f"{text}: smelt runs on " + ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)


def _torch(version: str) -> tuple[bool | None, str]:
    """Whether tests were run with this version of PyTorch. Of another the rest of the checks is what is known."""
    reason = why_not_tested(version)
    return (True, version) if reason is None else (None, f"{reason}; see the self-check below")


def _llvmlite() -> tuple[bool, str]:
    from smelt.codegen.cpu import target as cpu
    from smelt.codegen.llvm.shared_objects import version

    try:
        installed = version()
    except ImportError as error:
        return False, f"cannot be imported ({error}): pip install llvmlite"
    target = cpu.describe_host()
    return True, f"{installed}: {target.cpu}, vectors of {target.vector_bits} bits"


def _threads() -> tuple[bool, str]:
    from smelt.torch_abi.symbols import has_openmp

    count = f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    return True, count if has_openmp() else f"{count}; PyTorch's OpenMP was not found, kernels run on one thread"


def _layouts() -> tuple[bool | None, str]:
    """What experiments found out about PyTorch's memory. Without it everything works, slower."""
    from smelt.torch_abi import aoti_shims, node_layout, tensor_layout
    from smelt.torch_abi.probe import why_not_probe

    if (reason := why_not_probe()) is not None:
        return None, f"PyTorch's memory: {reason}"
    library = aoti_shims.EXPERIMENT
    missing = {
        "tensor layout": tensor_layout.EXPERIMENT.why_not(),
        "autograd nodes": node_layout.EXPERIMENT.why_not(),
        "exported functions": library.why_not(),
    }
    available = [name for name, why in missing.items() if why is None]
    if library.result is not None:
        available[-1] = f"{len(library.result.functions)} {available[-1]}"
    lost = [f"not {name} ({why})" for name, why in missing.items() if why is not None]
    return not lost, "PyTorch's memory: " + ", ".join([*available, *lost])


def _gpu() -> tuple[bool | None, str]:
    """The driver and its GPUs, or why none is used. Asked of the driver itself, which PyTorch might not be for."""
    from smelt.codegen import targets as _targets  # noqa: F401  those that come with the package are on offer
    from smelt.device import target_of
    from smelt.runtime.cuda.driver import driver, why_not_cuda, why_not_device

    reason = why_not_cuda()
    seen_by_torch = torch.cuda.is_available()
    if reason is not None:
        return None, f"{'PyTorch runs graphs on its own' if seen_by_torch else 'none'}: {reason}"
    cuda = driver()
    names = [
        f"{each.name} (sm_{each.capability[0]}{each.capability[1]}" + (", too old)" if why_not_device(each) else ")")
        for each in cuda.devices
    ]
    text = f"CUDA driver {cuda.text}: {', '.join(names)}"
    if not seen_by_torch:
        return None, f"{text}; this PyTorch cannot use it"
    target = target_of(torch.device("cuda"))
    if target is None:
        return None, f"{text}; graphs on it fall back to eager, as no target is for it"
    return True, f"{text}; code is generated for {target}"


def _cache() -> tuple[bool | None, str]:
    if open_store() is None:
        return None, "switched off"
    place = directory()
    os.makedirs(place, exist_ok=True)
    with tempfile.TemporaryFile(dir=place):
        pass
    return True, f"{place} can be written"


def _calibration() -> tuple[bool | None, str]:
    """What products, convolutions and attention are chosen by."""
    costs = kept()
    if not costs:
        return None, "none: by default few of them are kernels on this processor; `smelt doctor --calibrate` measures"
    counts = " and ".join(map(str, sorted(costs)))
    kinds = {kind for each in costs.values() for kind in (*each.products, *each.attention)}
    return True, f"products, convolutions and attention of {len(kinds)} kinds were measured with {counts} threads"


def _uses_gpu() -> bool:
    try:
        return _gpu()[0] is True
    except Exception:  # it is told where the GPU is
        return False


def _self_check(compile: Compile, device: torch.device) -> tuple[bool | None, str]:
    if is_disabled():
        return None, "not run: SMELT_DISABLE is set, so nothing is compiled"
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4), nn.Softmax(-1))
    x = torch.randn(8, 16).to(device).requires_grad_()
    judge = Judge(model.to(device), (x,), {}, compile)
    verification = verify(judge, ("eager", "aot_eager", "llvm"), {"fallback": False})
    if verification.first_wrong is not None:
        return False, str(verification.first_wrong)
    where = "" if device is HOST else f" for {torch.cuda.get_device_name(device)}"
    return True, f"a small model compiled by every backend{where}; results and gradients are right"
