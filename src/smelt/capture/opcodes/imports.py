"""`import` inside captured code: a loaded module is looked up, any other is loaded while its caller is captured.

    from . import _torch_specific   →   imported now, as nothing that was written before is outstanding

Importing twice is importing once, so it may happen a little early: where the graph fails, Python meets it loaded.
"""

import sys
import types

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.tape.program_state import as_the_program_has_it


def is_imported(name: str, wanted: tuple[str, ...]) -> bool:
    """Whether `import name`, or `from name import wanted…`, loads nothing."""
    module = sys.modules.get(name)
    if module is None:
        return False
    held = module.__dict__ if isinstance(module, types.ModuleType) else {}
    if "__path__" not in held or "__getattr__" in held or type(module) is not types.ModuleType:
        return True  # no package, or one that makes what it is asked for
    return all(each in held or f"{name}.{each}" in sys.modules for each in wanted)


def import_now(interp: Interpreter, name: str, wanted: tuple[str, ...]) -> None:
    """Load a module, as the program would here."""
    if interp.externals.explores or interp.externals.has_pending_writes():
        raise Unsupported("B012", f"import {name}, which is not loaded yet,")
    try:
        with as_the_program_has_it(interp.tape.ambient):
            __import__(name, {}, None, wanted, 0)
    except Exception as error:
        raise Unsupported("B012", f"import {name}, which raised {type(error).__name__},") from error
