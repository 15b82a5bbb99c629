"""ShieldTx: the declarations of a service, and the wiring of services to adapters."""
