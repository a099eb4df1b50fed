"""Functions written in C, once more in Python, so that capture can interpret them."""
