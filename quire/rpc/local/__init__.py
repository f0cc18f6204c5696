"""Sessions between processes of one machine: gRPC's calls, with their frames sent over a Unix socket."""
