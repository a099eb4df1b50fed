"""The stages in order, and the backends that use them."""
