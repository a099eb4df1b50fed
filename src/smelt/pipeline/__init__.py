"""Layer 4: the stages in order, and the backends that use them."""
