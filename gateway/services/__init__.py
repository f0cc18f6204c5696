"""The services behind the gateway: sessions with their replicas, and conversion of the messages they exchange."""
