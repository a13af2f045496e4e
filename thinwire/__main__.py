"""`python -m thinwire`: the command line, for where the `thinwire` command is not on the path."""

from __future__ import annotations

import sys

from thinwire.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
