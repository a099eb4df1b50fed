"""Compiled autograd: reading the graph that a backward would run, and tracing it."""
