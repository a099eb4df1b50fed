"""docs/operators.md, whole: what becomes of each operator, written from the records themselves."""

from collections.abc import Callable
from pathlib import Path

import torch

from smelt.fuse.lowering.matrix_products import FORMS
from smelt.ops.decompose.library_free.special import TABLE as SPECIAL
from smelt.ops.decompose.without_library import TABLE
from smelt.ops.decompositions import DECOMPOSITIONS
from smelt.ops.record import LibraryCall, Lookup, OpRecord, Pieces, Pointwise, Reduce, Scan, Scatter, View
from smelt.ops.registry import all_records, record_of
from tests.golden import golden

DOCS = Path(__file__).parents[2] / "docs"

HEAD = """# Operators

Written from the code by `pytest --update-golden`; edit the records in `src/smelt/ops/` instead.

How `backend="llvm"` compiles each ATen operator. A call may still be a library call because of its arguments: complex
numbers, no elements, results whose strides have gaps; `SMELT_LOGS=fusion` gives the reason. An operator that is not on
this page is a library call."""

SECTIONS: tuple[tuple[str, str, Callable[[OpRecord], bool]], ...] = (
    (
        "In kernels: pointwise",
        "Each element is computed from the elements at the same index, or from its position.",
        lambda record: isinstance(record.lowering, Pointwise),
    ),
    ("In kernels: reductions", "Over any dimensions.", lambda record: isinstance(record.lowering, Reduce)),
    (
        "In kernels: scans",
        "Along one dimension, forwards; backwards if PyTorch flips before and after.",
        lambda record: isinstance(record.lowering, Scan),
    ),
    (
        "In kernels: concatenation",
        "Each element is read from the part at its position, if all parts have the same size and only kernels read the "
        "result; otherwise a library call.",
        lambda record: isinstance(record.lowering, Pieces),
    ),
    (
        "In kernels: gathers",
        "Elements are read at computed positions or indices. Indices are checked first: if one is out of range, "
        "PyTorch's operator is called to raise its error. With masks instead of indices, it is a library call.",
        lambda record: isinstance(record.lowering, Lookup),
    ),
    (
        "In kernels: scatters",
        "Elements are written at indices, checked as above, into a copy of the destination; writes to the same element "
        "happen in the order of PyTorch on one thread.",
        lambda record: isinstance(record.lowering, Scatter),
    ),
    (
        "Views",
        "No code: readers of the result read the memory of the argument.",
        lambda record: isinstance(record.lowering, View),
    ),
)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _name(op: torch._ops.OpOverload) -> str:
    return str(op).removeprefix("aten.").removesuffix(".default")


def page() -> str:
    records = [record for record in all_records() if record.op.namespace != "smelt"]  # ours are made, not called
    parts = [HEAD]
    for title, text, belongs in SECTIONS:
        parts.append(f"## {title}\n\n{text}\n\n{_listed([_name(record.op) for record in records if belongs(record)])}")
    apart = [_name(op) for op in DECOMPOSITIONS if isinstance(op, torch._ops.OpOverload)]
    parts.append(
        "## Decomposed\n\nInto operators of the sections above, where the result has the strides that PyTorch's would; "
        f"`_foreach_*` into one operator per tensor.\n\n{_listed(apart)}"
    )
    reasons: dict[str, list[str]] = {}
    for record in records:
        if isinstance(record.lowering, LibraryCall):
            reasons.setdefault(record.lowering.why, []).append(_name(record.op))
    rows = [f"| it {why} | {_listed(names)} |" for why, names in sorted(reasons.items())]
    head = ["## Library calls", "", "| reason | operators |", "|---|---|"]
    parts.append("\n".join([*head, *rows]))
    parts.append(_without_library())
    return "\n\n".join(parts)


ALONE = """## Without libtorch

With `options={"library": "none"}`, all operators must be kernels. Matmuls, convolutions and attention are kernels, and
these operators are decomposed too: LISTED. Attention is decomposed if its sizes are dynamic, its gradients if heads
share keys. `torch.lstm` and `one_hot` are decomposed before autograd. Sorting compares every pair of elements. Exported
functions draw random numbers from their own generator.

If an operator has no kernel, compilation raises an error that names it ([SM031](errors.md)):

- operators in the table below, and operators that are not on this page;
- operators that are decomposed for some arguments only, such as pooling;
- matmuls and convolutions of integers, of complex numbers or of tensors without elements;
- results whose strides have gaps.

Kernels still take their memory from PyTorch's allocator. For an index out of range, PyTorch's operator is called to
raise its error. Code between graphs runs in PyTorch (`fullgraph=True` raises there), and so do second derivatives."""


def _without_library() -> str:
    """What no kernel computes, whatever the options are."""
    alone = {**TABLE, **SPECIAL}
    kept: dict[str, list[str]] = {}
    for record in all_records():
        lowering = record.lowering
        if isinstance(lowering, LibraryCall) and record.op not in {*DECOMPOSITIONS, *alone, *FORMS}:
            kept.setdefault(lowering.why, []).append(_name(record.op))
    rows = [f"| it {why} | {_listed(names)} |" for why, names in sorted(kept.items())]
    text = ALONE.replace("LISTED", _listed([_name(op) for op in alone if isinstance(op, torch._ops.OpOverload)]))
    return "\n".join([text, "", "| reason | operators |", "|---|---|", *rows])


def test_the_page_of_operators_is_what_the_records_say() -> None:
    golden("operators.md", page(), root=DOCS)


# Of the operators PyTorch calls its core, what is asked of shapes or memory and never computed.
NOT_COMPUTED = {"resize_", "atan2.out"}
# By another name in what autograd records.
RENAMED = {"var.dim": "var.correction", "_native_batch_norm_legit_no_training": "native_batch_norm"}


def test_every_core_operator_is_accounted_for() -> None:
    """The gaps are visible: each is in a kernel, decomposed, or a library call for a reason that is written."""
    missing = []
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if not full.startswith("aten::"):
            continue
        op = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if op is None or torch.Tag.core not in op.tags or op in DECOMPOSITIONS or name.startswith("sym_"):
            continue
        if record_of(op).lowering == LibraryCall() and _name(op) not in NOT_COMPUTED | set(RENAMED):
            missing.append(_name(op))
    assert missing == []
