"""Sessions between processes of one machine: the calls of gRPC, their frames over a Unix socket."""
