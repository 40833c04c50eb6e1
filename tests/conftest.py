"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in every run and on every machine, and no clock: a slow machine is not a bug.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=100,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")

# A program of its own. Read for doctests it would import Triton as a compiler, and no interpreter.
collect_ignore = ["ahead_of_time.py"]
