"""The write side: events are added to the caller's transaction."""
