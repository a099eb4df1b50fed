"""`python -m smelt.cli`, for where the `smelt` command is not on the path."""

import sys

from smelt.cli import main

sys.exit(main())
