"""The tables and all statements on them: the only package with SQL."""
