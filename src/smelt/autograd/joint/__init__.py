"""Tracing forward and backward together into one functional graph."""
