"""How the kernels of a program are launched, once they are what they will be."""
