"""Policies by name. A new one is a file beside this one and a line below."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from quire.errors import StartupError
from quire.options.router import RouterOptions
from router.placement.policies.base import Policy, Weights

# Name → module:class, imported when chosen.
POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "consistent_hash": "router.placement.policies.consistent_hash:ConsistentHash",
        "least_loaded": "router.placement.policies.least_loaded:LeastLoaded",
        "power_of_two": "router.placement.policies.power_of_two:PowerOfTwo",
        "prefix": "router.placement.policies.prefix:Prefix",
        "random": "router.placement.policies.uniform_random:UniformRandom",
        "round_robin": "router.placement.policies.round_robin:RoundRobin",
    }
)


def make_policy(options: RouterOptions, random: Random) -> Policy:
    """The policy that the options name.

    Args:
        random: for policies that draw.

    Raises:
        StartupError: there is none of that name.
    """
    name = options.routing_policy
    if name not in POLICIES:
        raise StartupError(f"--routing-policy {name} does not exist. Choose one of {', '.join(sorted(POLICIES))}.")
    weights = Weights(options.host_tier_weight, options.interference_weight, options.routing_temperature)
    module, _, class_name = POLICIES[name].partition(":")
    policy: Policy = getattr(importlib.import_module(module), class_name)(weights, random)
    return policy
