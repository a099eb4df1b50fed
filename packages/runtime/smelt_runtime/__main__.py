"""`python -m smelt_runtime model.smelt` prints what a file takes, returns and keeps.

Linear, code for x86-64
  input   input: float32[rows 1…4096, 4]
  output  output: float32[0…, 2]
"""

import sys
from collections.abc import Iterator

from smelt.base.errors import SmeltError
from smelt.deploy.loaded import LoadedArtifact, load
from smelt.deploy.runtime import RegisterInfo

UNBOUNDED = 2**63 - 1


def register_text(register: RegisterInfo) -> str:
    """`x: float32[rows 2…4096, 4]`."""
    if register.choices:
        return f"{register.name}: one of {', '.join(map(repr, register.choices))}"
    dims = []
    for low, high, name in register.dims:
        bounds = str(low) if low == high else f"{low}…{'' if high == UNBOUNDED else high}"
        dims.append(f"{name} {bounds}" if name else bounds)
    return f"{register.name}: {register.dtype or 'None, or a tensor'}[{', '.join(dims)}]"


def description(model: LoadedArtifact) -> Iterator[str]:
    """The lines about a file."""
    yield f"{model.name}, code for {model.target}"
    for name in model.entries:
        entry = model.entry(name)
        if len(model.entries) > 1:
            yield f"entry point {name}"
        yield from (f"  input   {register_text(each)}" for each in entry.inputs)
        yield from (f"  output  {register_text(each)}" for each in entry.outputs)
    state = model.state_dict()
    yield from (f"  state   {name}: {array.dtype}{list(array.shape)}" for name, array in state.items())


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m smelt_runtime FILE", file=sys.stderr)
        return 2
    try:
        print("\n".join(description(load(sys.argv[1], threads=1))))
    except SmeltError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
