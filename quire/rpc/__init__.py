"""The gRPC plumbing shared by all services: servers, channels, sessions."""
