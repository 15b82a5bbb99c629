"""The protocol as a small machine, tried in every order of steps; read state.py first.

`python -m tests.verification.model` explores it. Each `actions_*.py` is one process of the system,
one step a transaction or a call of the broker, as shieldtx/relay/ and shieldtx/consumer/ make them.
"""
