"""``python -m groupsparse``: the same as the command ``groupsparse``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
