"""Defects that shieldtx had: each is put back, and a harness for any defect has to find it."""
