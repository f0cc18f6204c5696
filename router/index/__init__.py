"""What each worker has cached: the prefix index and what keeps it true."""
