"""Connections to frameworks that hold transactions of their own."""
