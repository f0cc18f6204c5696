"""Registry of routing policies. To add one, put a file beside this one and a line below."""

from __future__ import annotations

from random import Random

from quire.options.router import ROUTING_POLICIES, RouterOptions
from quire.registry import load_entry, registry
from router.placement.policies.base import Policy

# Name → module:class, imported when chosen.
POLICIES = registry(
    "--routing-policy",
    ROUTING_POLICIES,
    {
        "consistent_hash": "router.placement.policies.consistent_hash:ConsistentHash",
        "least_loaded": "router.placement.policies.least_loaded:LeastLoaded",
        "power_of_two": "router.placement.policies.power_of_two:PowerOfTwo",
        "prefix": "router.placement.policies.prefix:PrefixPolicy",
        "random": "router.placement.policies.uniform_random:UniformRandom",
        "round_robin": "router.placement.policies.round_robin:RoundRobin",
    },
)


def make_policy(options: RouterOptions, random: Random) -> Policy:
    """Builds the policy that the options name.

    Args:
        random: used by policies that draw at random.

    Raises:
        StartupError: there is no policy of that name.
    """
    policy_class = load_entry("--routing-policy", POLICIES, options.routing_policy)
    policy: Policy = policy_class(options.placement_cost, random)
    return policy
