"""So that the assertions of suites that are derived from say what was found."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.objectstore.cloud_suite")
