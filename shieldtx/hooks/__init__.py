"""Hooks around each send and each attempt."""
