"""``python -m taquba``."""

from __future__ import annotations

import sys

from taquba.cli import main

if __name__ == "__main__":
    sys.exit(main())
