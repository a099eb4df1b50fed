"""How calls become values: the rules that elements follow from, products, and what of them is left to the library."""
