"""Backwards compiled when gradients first arrive, and whole backwards of compiled autograd."""
