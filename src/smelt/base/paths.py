"""Where smelt's own files are: code of these folders is the compiler's, not the program's."""

import os

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
