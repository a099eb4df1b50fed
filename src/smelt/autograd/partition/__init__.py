"""Splitting the joint graph: what is saved, what is recomputed, how much memory that takes."""
