"""`python -m shieldtx`: the command `shieldtx` of this interpreter, whatever PATH names."""

from __future__ import annotations

from shieldtx.cli import main

if __name__ == "__main__":
    main()
