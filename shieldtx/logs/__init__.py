"""Formatters of log records, for the commands and for applications that set up `logging`."""

from shieldtx.logs.formatters import JsonFormatter, PlainFormatter

__all__ = ["JsonFormatter", "PlainFormatter"]
