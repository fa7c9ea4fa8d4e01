"""The conformance suite's options and fixtures are also those of the project's own tests."""

from accel.testing.plugin import *  # noqa: F403
