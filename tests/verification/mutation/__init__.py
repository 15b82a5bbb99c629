"""Mutation testing: small defects made from the syntax tree, each of which a test has to detect."""
