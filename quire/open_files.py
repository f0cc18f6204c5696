"""The limit on open files, of which every connection is one."""

from __future__ import annotations

import resource

# Files that a gateway opens beside its clients' connections.
BESIDE_CONNECTIONS = 256


def allow_open_files(wanted: int) -> int:
    """Raises this process's limit to at least `wanted`, as far as it may; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
