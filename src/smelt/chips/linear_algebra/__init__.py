"""Linear algebra on a chip: factorizations, what is solved with them, and eigenvalues, as loops of fused steps."""
