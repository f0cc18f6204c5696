"""Checks Kubernetes manifests without a cluster: renders a folder like kustomize, and validates all fields.

The types are the subset of apps/v1, core/v1, networking.k8s.io/v1, policy/v1, leaderworkerset.x-k8s.io/v1, ray.io/v1,
keda.sh/v1alpha1 and monitoring.coreos.com/v1 that deploy/kubernetes uses; unknown fields are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import yaml


class Strict(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """An object that has its declared fields and no others."""


class Metadata(Strict):
    name: str = ""
    labels: dict[str, str] = {}


class Image(Strict):
    name: str
    new_name: str = ""
    new_tag: str = ""


class Kustomization(Strict):
    api_version: Literal["kustomize.config.k8s.io/v1beta1"]
    kind: Literal["Kustomization"]
    resources: list[str]
    images: list[Image] = []


class Named(Strict):
    name: str


class EnvironmentSource(Strict):
    secret_ref: Named


class FieldReference(Strict):
    field_path: Literal["status.podIP"]


class ValueSource(Strict):
    field_ref: FieldReference


class EnvironmentVariable(Strict):
    name: str
    value_from: ValueSource


class ContainerPort(Strict):
    name: str
    container_port: int


class HttpGet(Strict):
    path: str
    port: str | int


class GrpcAction(Strict):
    port: int


class Probe(Strict):
    http_get: HttpGet | None = None
    grpc: GrpcAction | None = None
    period_seconds: int = 10
    failure_threshold: int = 3


class Resources(Strict):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Capabilities(Strict):
    drop: list[str]


class SecurityContext(Strict):
    run_as_non_root: bool
    read_only_root_filesystem: bool
    allow_privilege_escalation: bool
    capabilities: Capabilities


class VolumeMount(Strict):
    name: str
    mount_path: str
    read_only: bool = False


class Container(Strict):
    name: str
    image: str
    command: list[str] = []
    args: list[str] = []
    env: list[EnvironmentVariable] = []
    env_from: list[EnvironmentSource] = []
    ports: list[ContainerPort] = []
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    resources: Resources = Resources()
    security_context: SecurityContext | None = None
    volume_mounts: list[VolumeMount] = []


class EmptyDir(Strict):
    medium: Literal["", "Memory"] = ""
    size_limit: str = ""


class Claim(Strict):
    claim_name: str
    read_only: bool = False


class Volume(Strict):
    name: str
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: Claim | None = None


class PodSpec(Strict):
    containers: list[Container]
    volumes: list[Volume] = []
    enable_service_links: bool = True
    termination_grace_period_seconds: int = 30


class PodTemplate(Strict):
    spec: PodSpec
    metadata: Metadata = Metadata()


class Requirement(Strict):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []


class Selector(Strict):
    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []


class RollingUpdate(Strict):
    max_unavailable: int
    max_surge: int


class Strategy(Strict):
    rolling_update: RollingUpdate


class DeploymentSpec(Strict):
    strategy: Strategy
    selector: Selector
    template: PodTemplate
    replicas: int | None = None  # one at first, later what an autoscaler chose
    min_ready_seconds: int = 0


class Deployment(Strict):
    api_version: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class ServicePort(Strict):
    name: str
    port: int
    target_port: str | int


class ServiceSpec(Strict, rename={"cluster_ip": "clusterIP"}):
    selector: dict[str, str]
    ports: list[ServicePort]
    cluster_ip: str = ""


class Service(Strict):
    api_version: Literal["v1"]
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class NetworkPeer(Strict):
    pod_selector: Selector
    namespace_selector: Selector | None = None  # None means the policy's own namespace


class NetworkPort(Strict):
    port: int | str


class IngressRule(Strict, rename={"sources": "from"}):
    sources: list[NetworkPeer]
    ports: list[NetworkPort] = []


class NetworkPolicySpec(Strict):
    pod_selector: Selector
    policy_types: list[Literal["Ingress", "Egress"]]
    ingress: list[IngressRule]


class NetworkPolicy(Strict):
    api_version: Literal["networking.k8s.io/v1"]
    kind: Literal["NetworkPolicy"]
    metadata: Metadata
    spec: NetworkPolicySpec


class PodDisruptionBudgetSpec(Strict):
    max_unavailable: int
    selector: Selector


class PodDisruptionBudget(Strict):
    api_version: Literal["policy/v1"]
    kind: Literal["PodDisruptionBudget"]
    metadata: Metadata
    spec: PodDisruptionBudgetSpec


class LeaderWorkerTemplate(Strict):
    worker_template: PodTemplate
    leader_template: PodTemplate | None = None
    size: int = 1
    restart_policy: Literal["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None", "Default"] = (
        "RecreateGroupOnPodRestart"
    )


class LeaderWorkerSetSpec(Strict):
    leader_worker_template: LeaderWorkerTemplate
    replicas: int = 1
    startup_policy: Literal["LeaderCreated", "LeaderReady"] = "LeaderCreated"


class LeaderWorkerSet(Strict):
    api_version: Literal["leaderworkerset.x-k8s.io/v1"]
    kind: Literal["LeaderWorkerSet"]
    metadata: Metadata
    spec: LeaderWorkerSetSpec


class HeadGroup(Strict):
    ray_start_params: dict[str, str]
    template: PodTemplate


class WorkerGroup(Strict):
    group_name: str
    replicas: int
    min_replicas: int
    max_replicas: int
    ray_start_params: dict[str, str]
    template: PodTemplate


class RayClusterSpec(Strict):
    head_group_spec: HeadGroup
    worker_group_specs: list[WorkerGroup] = []


class RayJobSpec(Strict):
    entrypoint: str
    ray_cluster_spec: RayClusterSpec
    submission_mode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode"] = "K8sJobMode"
    shutdown_after_job_finishes: bool = False
    backoff_limit: int = 0


class RayJob(Strict):
    api_version: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec


class ScaleTarget(Strict):
    name: str
    kind: Literal["Deployment"] = "Deployment"


class ScalingPolicy(Strict):
    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


class ScalingRules(Strict):
    stabilization_window_seconds: int
    policies: list[ScalingPolicy]


class ScalingBehavior(Strict):
    scale_down: ScalingRules


class AutoscalerConfig(Strict):
    behavior: ScalingBehavior


class AdvancedScaling(Strict):
    horizontal_pod_autoscaler_config: AutoscalerConfig


class PrometheusQuery(Strict):
    server_address: str
    query: str
    threshold: str
    ignore_null_values: Literal["true", "false"] = "true"


class ScalingTrigger(Strict):
    type: Literal["prometheus"]
    metadata: PrometheusQuery
    metric_type: Literal["AverageValue", "Value"] = "AverageValue"


class ScaledObjectSpec(Strict):
    scale_target_ref: ScaleTarget
    triggers: list[ScalingTrigger]
    advanced: AdvancedScaling
    min_replica_count: int = 0
    max_replica_count: int = 100


class ScaledObject(Strict):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: ScaledObjectSpec


class SecretKey(Strict):
    name: str
    key: str


class Authorization(Strict):
    credentials: SecretKey


class PodMetricsEndpoint(Strict):
    port: str
    interval: str
    authorization: Authorization | None = None


class PodMonitorSpec(Strict):
    selector: Selector
    pod_metrics_endpoints: list[PodMetricsEndpoint]
    job_label: str = ""


class PodMonitor(Strict):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PodMonitor"]
    metadata: Metadata
    spec: PodMonitorSpec


_KINDS = (
    Deployment, Service, NetworkPolicy, PodDisruptionBudget, LeaderWorkerSet, RayJob, ScaledObject, PodMonitor,
)  # fmt: skip
KINDS: Mapping[str, type[Strict]] = MappingProxyType({kind.__name__: kind for kind in _KINDS})


def render(folder: Path) -> list[dict[str, Any]]:
    """The objects of a folder and of the folders it builds on, with its image tags, as rendered by kustomize."""
    chosen = msgspec.convert(yaml.safe_load((folder / "kustomization.yaml").read_text()), Kustomization)
    objects: list[dict[str, Any]] = []
    for name in chosen.resources:
        place = folder / name
        objects += render(place) if place.is_dir() else yaml.safe_load_all(place.read_text())
    return [_with_images(each, {image.name: image for image in chosen.images}) for each in objects]


def _with_images(value: Any, images: Mapping[str, Image]) -> Any:
    if isinstance(value, list):
        return [_with_images(item, images) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _with_images(item, images) for key, item in value.items()}
    if (image := images.get(str(value.get("image", "")))) is not None:
        changed["image"] = f"{image.new_name or image.name}:{image.new_tag or 'latest'}"
    return changed


def validate(rendered: dict[str, Any]) -> Strict:
    """Validates an object.

    Raises:
        KeyError: its kind is unknown.
        msgspec.ValidationError: it has unknown fields, lacks fields, or has invalid values.
    """
    return msgspec.convert(rendered, KINDS[rendered["kind"]])
