"""Records of operators left to ATen that can write into memory given to them.

    mm(a, b)  →  mm.out(a, b, out=planned buffer)

Only variants that compute straight into `out` are listed; the generated ones, which compute and then copy, are not.
"""

import torch

from smelt.ops.record import LIBRARY_COST, LibraryCall, OpRecord
from smelt.ops.registry import register

aten = torch.ops.aten

for _op, _out in (
    (aten.mm.default, aten.mm.out),
    (aten.bmm.default, aten.bmm.out),
    (aten.addmm.default, aten.addmm.out),
    (aten.baddbmm.default, aten.baddbmm.out),
    (aten.mv.default, aten.mv.out),
    (aten.addmv.default, aten.addmv.out),
    (aten.gather.default, aten.gather.out),
    (aten.index_select.default, aten.index_select.out),
    (aten._softmax.default, aten._softmax.out),
    (aten._log_softmax.default, aten._log_softmax.out),
):
    register(OpRecord(_op, LibraryCall(_out, ("out",)), LIBRARY_COST))
