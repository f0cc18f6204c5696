"""deploy/kubernetes as kustomize renders it: fields that exist, names that fit together, commands that parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from quire.cli import COMMANDS
from quire.options.base import build, fields_of
from quire.options.parallel import ParallelOptions
from tests.support.kubernetes import (
    Container,
    Deployment,
    LeaderWorkerSet,
    PodDisruptionBudget,
    PodMonitor,
    RayJob,
    ScaledObject,
    render,
    validate,
)

ROOT = Path(__file__).parents[2] / "deploy/kubernetes"
FOLDERS = ("base", "data-parallel", "encoders", "nodes", "prefill-decode", "ray")
OPTIONS = {field.name for field in fields_of(ParallelOptions)}
OWN = {
    "quire-gateway": "gateway",
    "quire-router": "router",
    "quire-tokenizer": "tokenizer",
    "quire-engine-gpu": "engine",
}
# Not services' variables that are options: see deploy/README.md.
FORBIDDEN_SERVICES = ("quire", "quire-router", "quire-metrics")


def found(value: Any, kind: type[Any]) -> Iterator[Any]:
    """Everything of a kind within an object."""
    if isinstance(value, kind):
        yield value
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, list):
        for item in value:
            yield from found(item, kind)


@pytest.mark.parametrize("folder", [*FOLDERS, "autoscaling"])
def test_rendered_objects_are_valid(folder: str) -> None:
    rendered = render(ROOT / folder)
    objects = [validate(each) for each in rendered]
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered]
    assert len(set(names)) == len(names)
    assert not [name for kind, name in names if kind == "Service" and name in FORBIDDEN_SERVICES]
    for container in found(objects, Container):
        assert container.image.endswith(":latest"), container.image  # a tag that the folder chooses
        assert {mount.name for mount in container.volume_mounts} <= {"tmp", "shm", "model", "kv"}


@pytest.mark.parametrize("folder", [*FOLDERS, "autoscaling"])
def test_volumes_and_services_are_there(folder: str) -> None:
    rendered = render(ROOT / folder)
    services = {each["metadata"]["name"]: each["spec"] for each in rendered if each["kind"] == "Service"}
    labels = {label for each in rendered for label in re.findall(r"'labels': \{'app': '([\w-]+)'\}", str(each))}
    assert {spec["selector"]["app"] for spec in services.values()} <= labels
    for host, port in re.findall(r"(llm-[a-z]+):(\d+)", str(rendered)):
        assert services[host]["ports"][0]["port"] == int(port)


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_that_stand_for_several_pods_are_headless(folder: str) -> None:
    """A name with one address for all would hide which router or tokenizer service a session is with."""
    rendered = render(ROOT / folder)
    headless = {
        each["metadata"]["name"]
        for each in rendered
        if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None"
    }
    found = re.findall(r"--(?:router-address|register-with|tokenizer-address)[= ](llm-[a-z]+):", str(rendered))
    assert found
    assert set(found) <= headless


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != "ray"])  # Ray needs all pods of its job
def test_no_rollout_or_eviction_takes_all_pods(folder: str) -> None:
    objects = [validate(each) for each in render(ROOT / folder)]
    budgets = [each.spec for each in objects if isinstance(each, PodDisruptionBudget)]
    deployments = [each.spec for each in objects if isinstance(each, Deployment)]
    groups = [each.spec.leader_worker_template.worker_template for each in objects if isinstance(each, LeaderWorkerSet)]
    for template in (*(each.template for each in deployments), *groups):
        labels = template.metadata.labels.items()
        (budget,) = (each for each in budgets if each.selector.match_labels.items() <= labels)
        assert budget.max_unavailable == 1
    for each in deployments:
        assert each.strategy.rolling_update.max_unavailable == 0
        assert (each.replicas or 1) > 1 or each.template.metadata.labels["app"] == "llm-engine"


def commands(folder: str) -> Iterator[tuple[str, list[str]]]:
    """(sub-command of quire, its arguments) of the folder's containers and jobs."""
    for each in map(validate, render(ROOT / folder)):
        if isinstance(each, RayJob):
            yield each.spec.entrypoint.split()[1], each.spec.entrypoint.split()[2:]
            continue
        for container in found(each, Container):
            if not container.command:
                yield OWN[container.image.partition(":")[0]], container.args
                continue
            script = container.args[0].replace("$((LWS_WORKER_INDEX * 8))", "8").replace("$LWS_WORKER_INDEX", "1")
            words = shlex.split(script.removeprefix("exec quire "))
            yield words[0], words[1:]


@pytest.mark.parametrize("folder", FOLDERS)
def test_commands_parse(folder: str) -> None:
    for name, arguments in commands(folder):
        if "--pipeline-parallel-size" in arguments and "pipeline_parallel_size" not in OPTIONS:
            continue  # it is not built yet
        command = COMMANDS[name]()
        with click.Context(command) as ctx:
            command.parse_args(ctx, list(arguments))


def test_a_group_has_as_many_ranks_as_its_nodes_have() -> None:
    (group,) = [each for each in map(validate, render(ROOT / "data-parallel")) if isinstance(each, LeaderWorkerSet)]
    _, arguments = next((name, words) for name, words in commands("data-parallel") if "--headless" in words)
    flags = {flag: arguments[index + 1] for index, flag in enumerate(arguments[:-1]) if flag.startswith("--")}
    local, template = int(flags["--data-parallel-size-local"]), group.spec.leader_worker_template
    assert int(flags["--data-parallel-size"]) == local * template.size
    assert template.worker_template.spec.containers[0].resources.limits["nvidia.com/gpu"] == str(local)


def test_a_worker_over_nodes_has_a_rank_for_each_of_their_gpus() -> None:
    (group,) = [each for each in map(validate, render(ROOT / "nodes")) if isinstance(each, LeaderWorkerSet)]
    _, arguments = next((name, words) for name, words in commands("nodes") if "--nnodes" in words)
    flags = {flag: arguments[index + 1] for index, flag in enumerate(arguments[:-1]) if flag.startswith("--")}
    template, ranks = group.spec.leader_worker_template, build(ParallelOptions, {
        field.name: int(flags[field.flag]) for field in fields_of(ParallelOptions)
        if field.flag in flags and field.type is int
    })  # fmt: skip
    assert ranks.nodes.nnodes == template.size
    (container,) = template.worker_template.spec.containers
    assert container.resources.limits["nvidia.com/gpu"] == str(ranks.num_local_ranks)
    assert ranks.nodes.master_port in [port.container_port for port in container.ports]


def test_one_deployment_saves_the_blocks_that_the_other_one_loads() -> None:
    """And keeps them where it has room for them."""
    engines = [arguments for name, arguments in commands("prefill-decode") if name == "engine"]
    roles = {each.removeprefix("--kv-transfer-config.kv_role=") for arguments in engines for each in arguments}
    assert roles >= {"kv_producer", "kv_consumer"}
    extra = "--kv-transfer-config.kv_connector_extra_config."
    for arguments in engines:
        assert "--kv-transfer-config.kv_connector=GrpcConnector" in arguments
        assert {f"{extra}local_storage_path=/dev/shm", f"{extra}max_gib=32"} <= {*arguments}
    assert len(engines) == 2


def test_every_engine_is_scaled_and_no_faster_down_than_it_drains() -> None:
    objects = [validate(each) for each in render(ROOT / "autoscaling")]
    deployments = {each.metadata.name: each.spec for each in objects if isinstance(each, Deployment)}
    scaled = [each.spec for each in objects if isinstance(each, ScaledObject)]
    engines = {name for name, spec in deployments.items() if spec.template.metadata.labels["app"] == "llm-engine"}
    assert {each.scale_target_ref.name for each in scaled} == engines
    for each in scaled:
        target = deployments[each.scale_target_ref.name]
        assert target.replicas is None  # or to apply the folder again would undo what the autoscaler did
        (policy,) = each.advanced.horizontal_pod_autoscaler_config.behavior.scale_down.policies
        assert (policy.type, policy.value) == ("Pods", 1)
        assert policy.period_seconds >= target.template.spec.termination_grace_period_seconds
        assert each.min_replica_count == 1
        assert [trigger.metadata.ignore_null_values for trigger in each.triggers] == ["false"]


def test_monitored_pods_have_the_ports() -> None:
    objects = [validate(each) for each in render(ROOT / "autoscaling")]
    ports = {
        each.metadata.name: {port.name: port.container_port for port in each.spec.template.spec.containers[0].ports}
        for each in objects
        if isinstance(each, Deployment)
    }
    monitors = [each.spec for each in objects if isinstance(each, PodMonitor)]
    assert monitors
    for monitor in monitors:
        for endpoint in monitor.pod_metrics_endpoints:
            assert endpoint.port in ports[monitor.selector.match_labels["app"]]
    arguments = next(arguments for name, arguments in commands("base") if name == "router")
    assert f"--metrics-port={ports['llm-router']['metrics']}" in arguments


def test_what_no_object_has_is_refused() -> None:
    rendered = next(each for each in render(ROOT / "base") if each["kind"] == "Deployment")
    rendered["spec"]["template"]["spec"]["conatiners"] = []
    with pytest.raises(msgspec.ValidationError, match="conatiners"):
        validate(rendered)
