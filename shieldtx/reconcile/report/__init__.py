"""The report of a run: the page for readers, the files of a run, the table for a terminal.

This module imports nothing: every command loads `terminal`, and only a run loads `writer` and
Jinja2.
"""
