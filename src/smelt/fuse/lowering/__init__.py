"""How calls become values: element rules, products, and the choice between kernels and library calls."""
