"""Exploring a function for export: every way it can go, as a machine of graphs."""
