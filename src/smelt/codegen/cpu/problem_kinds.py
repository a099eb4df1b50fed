"""The kinds of kernels with a contraction, loaded with the first of them: most modules of the CPU's generator are
theirs."""

from smelt.codegen.cpu.attention.plan import ATTENTION
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.codegen.cpu.recurrence.schedule import RECURRENCE

KINDS = (RECURRENCE, ATTENTION, PRODUCTS)  # products last: kernels of the others have contractions too
