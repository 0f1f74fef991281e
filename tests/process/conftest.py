"""The examples import their helpers as a script's neighbours do; the tests need them too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

# So that a failure says which promise was broken.
pytest.register_assert_rewrite("tests.process.harness")
