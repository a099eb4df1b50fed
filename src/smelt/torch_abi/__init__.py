"""PyTorch's memory and exported C functions, found by experiment, behind one switch."""
