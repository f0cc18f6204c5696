"""Quire: an LLM inference system made of small gRPC services."""

import os

# Quire's processes never fork without exec, yet gRPC would log a warning for every child process. Read when grpc is
# imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Keeps gRPC from logging connections that end: the caller of each one learns of it and reports what it means.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.1.0"
