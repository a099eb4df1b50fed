"""The C library that runs artifacts: where it is, and the flags to build a program against it.

    build_flags()   →   -I…/smelt/include -L…/smelt/lib -Wl,-rpath,…/smelt/lib -lsmelt -lm -lpthread -ldl
"""

from pathlib import Path

import smelt

PACKAGE = Path(smelt.__file__).parent
INCLUDE = PACKAGE / "include"
"""The folder of smelt.h and smelt.hpp."""
LIBRARY = PACKAGE / "lib" / "libsmelt.so"
STATIC_LIBRARY = PACKAGE / "lib" / "libsmelt.a"


def build_flags(*, static: bool = False) -> list[str]:
    """What a C or C++ compiler is to be given, behind the program's sources. `static`: the library becomes a part of
    the program; otherwise the program finds it where it is now."""
    head = [f"-I{INCLUDE}"]
    tail = ["-lm", "-lpthread", "-ldl"]
    if static:
        return [*head, str(STATIC_LIBRARY), *tail]
    folder = LIBRARY.parent
    return [*head, f"-L{folder}", f"-Wl,-rpath,{folder}", "-lsmelt", *tail]
