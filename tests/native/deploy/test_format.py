"""C has the layout of tables and files from a header that Python writes; smelt.h has the same dtypes."""

import re
from dataclasses import replace
from typing import Any

import pytest

from smelt.ir.artifact_file.artifact import ArtifactFile
from smelt.ir.artifact_file.container import ArtifactError
from smelt.ir.artifact_file.read import read
from smelt.ir.artifact_file.write import write
from smelt.ir.table import layout
from smelt.ir.table import records as r
from tests.native.deploy.c_library import INCLUDE
from tests.native.deploy.models import grids
from tools.table_header import HEADER, header


def test_the_header_is_what_the_layout_says() -> None:
    assert HEADER.read_text() == header(), "run tools/table_header.py"


def test_dtypes_have_the_same_numbers() -> None:
    pairs = re.findall(r"SMELT_(\w+) = (\d+)", (INCLUDE / "smelt.h").read_text())
    numbers = {name.lower(): int(number) for name, number in pairs}
    assert [numbers[name] for name in layout.DTYPE_NAMES] == list(range(len(layout.DTYPE_NAMES)))


def _with_product(**changes: Any) -> ArtifactFile:
    """A file whose first grid begins a product, with other fields in it, or in its first operand."""
    artifact = grids().artifact()
    part = artifact.targets[0]
    kernel = part.table.kernels[0]
    first, second = kernel.grids
    assert first.product is not None
    of_operand = {name: value for name, value in changes.items() if name in r.Operand.__annotations__}
    of_product = {name: value for name, value in changes.items() if name not in of_operand}
    operands = (replace(first.product.operands[0], **of_operand), *first.product.operands[1:])
    product = replace(first.product, **{"operands": operands, **of_product})
    kernel = replace(kernel, grids=(replace(first, product=product), second))
    table = replace(part.table, kernels=(kernel, *part.table.kernels[1:]))
    return replace(artifact, targets=(replace(part, table=table), *artifact.targets[1:]))


def test_products_are_read_as_they_were_written() -> None:
    artifact = _with_product(offset=2**40, cols=-1)
    assert read(write(artifact)).targets[0].table == artifact.targets[0].table


@pytest.mark.parametrize(
    "changes",
    [
        {"buffer": -1}, {"buffer": 100}, {"dtype": "int64"}, {"dtype": "bfloat16"}, {"offset": 2**62}, {"row": -100},
        {"col": -(2**63)}, {"outer": 2**48}, {"rows": -100}, {"terms": 2**48}, {"grids": 0}, {"grids": 3},
        {"operands": ()},
    ],
    ids=str,
)  # fmt: skip
def test_products_of_what_is_not_there_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="products"):
        write(_with_product(**changes))


def test_a_product_of_numbers_that_the_host_has_is_refused() -> None:
    artifact = _with_product()
    part = artifact.targets[0]
    (state,) = part.table.states
    variants = []
    for variant in state.variants:
        value = next(step.values[0] for step in variant.steps if isinstance(step, r.Launch))
        numbers = r.SizesValue((r.number(1),))
        values = tuple(numbers if place == value else each for place, each in enumerate(variant.values))
        variants.append(replace(variant, values=values))
    table = replace(part.table, states=(replace(state, variants=tuple(variants)),))
    with pytest.raises(ArtifactError, match="sizes or numbers"):
        write(replace(artifact, targets=(replace(part, table=table), *artifact.targets[1:])))
