"""One pure function per statement, from the tables and the dialect to the statement."""
