"""The life of worker processes: periodic jobs, signals, watchdog, cron."""
