"""Defects that shieldtx had: each is put back, and a general harness has to find it."""
