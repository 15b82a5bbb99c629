"""One pure function per statement: it takes the tables and the dialect and returns the statement."""
