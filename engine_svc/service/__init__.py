"""The worker's network side: its gRPC services, client sessions, and registration with routers."""
