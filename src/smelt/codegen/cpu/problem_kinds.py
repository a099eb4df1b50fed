"""The kinds of kernels with a contraction, loaded with the first of them: most modules of the CPU's generator are
theirs."""

from smelt.codegen.cpu.attention.plan import ATTENTION
from smelt.codegen.cpu.products.plan import PRODUCTS

KINDS = (ATTENTION, PRODUCTS)  # attention first: its kernels have contractions too
