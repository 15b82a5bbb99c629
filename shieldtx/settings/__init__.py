"""The settings of a service: SHIELDTX_* in the environment."""
