"""ShieldTx: what a service declares, and the wiring of services to adapters."""
