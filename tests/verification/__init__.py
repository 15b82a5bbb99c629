"""The proofs of shieldtx's guarantees: see README.md."""
