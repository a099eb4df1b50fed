"""Kernels whose rows run step by step: recurrent layers and their gradients."""
