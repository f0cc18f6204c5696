"""The prefix index of what each worker has cached, and the feeds that keep it up to date."""
