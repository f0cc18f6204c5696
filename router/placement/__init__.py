"""Which worker a request goes to, and why."""
