"""The tables and every statement on them: the only place with SQL."""
