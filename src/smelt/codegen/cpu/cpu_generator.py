"""The host CPU's code generator: the functions that `codegen.generator.Generator` names."""

from collections.abc import Mapping, Sequence

from smelt.base.row import Row
from smelt.codegen.cpu.entry_points import write as emit
from smelt.codegen.cpu.schedule_passes import SCHEDULE
from smelt.codegen.cpu.schedule_passes import plan as schedule
from smelt.codegen.cpu.shared_bodies import MODULE, member
from smelt.codegen.cpu.shared_bodies import shared as share
from smelt.codegen.llvm.compile import assemble, load

TABLES: Mapping[str, Sequence[Row]] = {"the kernels of a program": MODULE, "each kernel": SCHEDULE}

__all__ = ["TABLES", "assemble", "emit", "load", "member", "schedule", "share"]
