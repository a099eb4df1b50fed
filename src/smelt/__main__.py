"""`python -m smelt`: the `smelt` command, for where it is not on the path."""

import sys

from smelt.cli import main

if __name__ == "__main__":
    sys.exit(main())
