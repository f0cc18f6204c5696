"""The services behind the gateway: sessions with their replicas, and what travels on them."""
