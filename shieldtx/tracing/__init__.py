"""Tracing: each attempt is recorded, and the timeline of one event is put together."""
