"""Decompositions by family; `smelt.ops.decompositions.DECOMPOSITIONS` is the whole table."""
