"""Room that compiling needs: stack on this thread, and memory where the process may have only so much of it.

    why_not_compile(stack_left)  →  None, or "148 KiB of stack are left on this thread, and compiling needs 256"
    why_not_build(threads=1)     →  None, or "96 MiB of address space are left (RLIMIT_AS), and LLVM needs 144"

Both end a process where they run out: a stack in a segmentation fault, LLVM by `abort()`. So they are asked before.
"""

import contextlib

try:
    import resource
except ImportError:  # not on Windows, which has no such limits
    resource = None  # type: ignore[assignment]

STACK = 256 << 10
"""What capture and the stages take of a thread's stack, and more than twice that."""

LLVM_STACK = 16 << 20
"""The stack of threads that LLVM runs on."""

LOADING, BUILDING = 384 << 20, 128 << 20
"""Memory that LLVM takes to be loaded, and to build kernels: several times what was seen."""

_PAGE = resource.getpagesize() if resource is not None else 4096
_SIZE, _DATA = 0, 5  # in /proc/self/statm


def why_not_compile(stack_left: int) -> str | None:
    """Why nothing is to be compiled on this thread, on which so many bytes of stack are left."""
    if stack_left >= STACK:
        return None
    return (
        f"{stack_left >> 10} KiB of stack are left on this thread, and compiling needs {STACK >> 10}. "
        "Hint: call it once on a thread with more (threading.stack_size), it runs on this one then"
    )


def why_not_build(threads: int, *, is_loaded: bool) -> str | None:
    """Why LLVM would run out of memory that this process may have."""
    if resource is None:
        return None
    needed = BUILDING + threads * LLVM_STACK + (0 if is_loaded else LOADING)
    for limit, name, field, what in (
        (resource.RLIMIT_AS, "RLIMIT_AS", _SIZE, "address space"),
        (resource.RLIMIT_DATA, "RLIMIT_DATA", _DATA, "memory"),
    ):
        most = resource.getrlimit(limit)[0]
        if most == resource.RLIM_INFINITY:
            continue
        left = most - _pages(field) * _PAGE
        if left < needed:
            return f"{max(left, 0) >> 20} MiB of {what} are left ({name}), and LLVM needs {needed >> 20}"
    return None


def _pages(field: int) -> int:
    """What the system says of this process's memory; none where it says nothing."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[field])
    return 0
