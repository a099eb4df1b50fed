"""The dtypes of tables and files: their names, numbers and sizes. Loading a file needs these and no other record."""

# Every dtype of a register: its name in PyTorch and NumPy, and the bytes of an element. Its number is its place here.
DTYPES: dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4,
    "float64": 8, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}  # fmt: skip
DTYPE_NAMES = tuple(DTYPES)
