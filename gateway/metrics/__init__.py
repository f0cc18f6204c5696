"""`/metrics`: figures of this gateway's requests and of the fleet, as Prometheus reads them."""
