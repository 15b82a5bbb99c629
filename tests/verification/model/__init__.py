"""The protocol as a small state machine, tried in every order of steps; read state.py first.

`python -m tests.verification.model` explores it. Each `actions_*.py` is one process of the system.
One step is a transaction or a call of the broker, as in shieldtx/relay/ and shieldtx/consumer/.
"""
