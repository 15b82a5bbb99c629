"""The application for `shieldtx --app benchmarks.subjects.command_line:shield`."""

from benchmarks.subjects.application import from_environment

shield = from_environment()
