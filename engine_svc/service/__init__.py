"""The worker on the network: its gRPC service, the sessions of its clients, and its place in a fleet."""
