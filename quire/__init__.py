"""Quire: an LLM inference system made of small gRPC services."""

import os

# No process of ours forks without exec; gRPC would log a warning for every child process. Read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Nor does it print what it makes of connections that end: whoever called over one hears of it and says what it means.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.1.0"
