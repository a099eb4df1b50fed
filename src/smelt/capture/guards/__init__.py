"""Guards: the tree of what a capture relied on, dynamic sizes, and what is reported when one fails."""
