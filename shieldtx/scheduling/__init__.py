"""Life cycle of worker processes: periodic jobs, signals, watchdog, cron."""
