"""`/metrics`: measurements of this gateway's requests and of the fleet, for Prometheus."""
