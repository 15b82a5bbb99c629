"""The report of a run: the page for people, the files of a run, the table of a terminal.

Nothing is imported here: every command loads `terminal`, only a run loads `writer`, and Jinja2.
"""
