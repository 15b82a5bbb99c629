"""Tracing: a record of each attempt, and the timeline of one event."""
