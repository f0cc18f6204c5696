"""Policies by name. A new one is a file beside this one and a line below."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from quire.errors import StartupError
from router.policies.base import Policy

# Name → module:class, imported when chosen.
POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "least_loaded": "router.policies.least_loaded:LeastLoaded",
        "power_of_two": "router.policies.power_of_two:PowerOfTwo",
        "random": "router.policies.uniform_random:UniformRandom",
        "round_robin": "router.policies.round_robin:RoundRobin",
    }
)


def make_policy(name: str) -> Policy:
    """A new policy.

    Raises:
        StartupError: there is none of that name.
    """
    if name not in POLICIES:
        raise StartupError(f"--routing-policy {name} does not exist. Choose one of {', '.join(sorted(POLICIES))}.")
    module, _, class_name = POLICIES[name].partition(":")
    policy: Policy = getattr(importlib.import_module(module), class_name)()
    return policy
