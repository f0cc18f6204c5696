"""How the nodes of one engine find each other: the ranks of the others connect to node 0, which compares their settings
with its own.

The connections are those of network.py, and stay: node 0 sends its steps over them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version

import msgspec

import quire
from engine_svc.executor.channel import Channel
from engine_svc.executor.interfaces import use_interface_of
from engine_svc.executor.network import Arrival, RankListener, connect, own_address
from engine_svc.fingerprint import model_digest
from engine_svc.loader.folder import weights_folder
from quire.errors import StartupError
from quire.options.base import values_of
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.rpc.discovery import join_address
from quire.serve.devices import count_gpus
from quire.supervised import Stage, report

logger = logging.getLogger(__name__)

_TELL_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
# Options that may differ between nodes: only node 0 uses them, or they describe the node.
_OWN = frozenset((
    "node_rank", "node_join_timeout_seconds", "host_ip", "register_with", "advertise_address",
    "log_stats_interval_seconds",
))  # fmt: skip
# Options of the model that ranks use.
_OF_RANKS = frozenset(("model", "revision", "download_dir", "use_modelscope"))


class Settings(msgspec.Struct):
    """What a node would compute, as text by name; equal on all nodes of an engine."""

    values: dict[str, str]


class Admission(msgspec.Struct):
    """Node 0's answer to Settings."""

    refusal: str = ""  # empty if the rank is welcome


@dataclass(frozen=True)
class OtherNodes:
    """The ranks of all nodes but the first, in order, and where all ranks form their process group."""

    ranks: list[Arrival]
    rendezvous: str


def settings_of(model: ModelOptions, options: EngineOptions) -> Mapping[str, str]:
    """The settings of this node; downloads the model if it is on a hub.

    Raises:
        StartupError: there is no such model.
    """
    folder = weights_folder(model, options.load)
    on_cpu = options.kernels.device == "cpu" or not count_gpus()
    fields = [(field, value) for field, value in values_of(model) if field.name in _OF_RANKS]
    fields += [(field, value) for field, value in values_of(options) if field.name not in _OWN]
    given = {field.flag: _text(value) for field, value in fields if not field.metadata["secret"]}
    return given | {
        "Quire's version": quire.__version__,
        "torch's version": version("torch"),
        "the device": "cpu" if on_cpu else "cuda",
        "the digest of the model's files": model_digest(folder, options).hex()[:16],
    }


def _text(value: object) -> str:
    return "unset" if value is None else msgspec.json.encode(value).decode()


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> str:
    """What differs between the settings of node 0 and those of another node; empty if they are equal."""
    names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    return "; ".join(f"{name} is {first.get(name)} on node 0, but {other.get(name)} on the other" for name in names)


def await_nodes(model: ModelOptions, options: EngineOptions) -> OtherNodes:
    """Waits, on node 0, until the ranks of all other nodes have joined.

    Raises:
        StartupError: node 0 cannot listen at --master-addr, or not all nodes have joined in time.
    """
    parallel, settings = options.parallel, settings_of(model, options)
    nodes, local = parallel.nodes, parallel.num_local_ranks
    host, waiting = parallel.executor.host_ip or nodes.master_addr or "", _Waiting()
    place = join_address(host, nodes.master_port)

    def tell(missing: set[int]) -> None:
        numbers = sorted({rank // local for rank in missing})
        waiting.tell(f"node{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} of {nodes.nnodes} at {place}")

    def greet(channel: Channel, refusal: str) -> None:
        _admit(channel, settings, refusal)

    try:
        own = own_address(host)
        with contextlib.closing(RankListener(host, nodes.master_port, _secret(options))) as listener:
            found = listener.accept(
                set(range(local, parallel.num_ranks)), nodes.node_join_timeout_seconds, tell, greet
            )  # fmt: skip
        with socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET) as free:
            rendezvous = f"tcp://{join_address(own, free.getsockname()[1])}"
    except TimeoutError as error:
        raise StartupError(
            f"Node 0 at {place}: {error}. Start the other nodes with the same --master-addr and --master-port, or "
            "increase --node-join-timeout-seconds."
        ) from error
    except OSError as error:
        raise StartupError(
            f"Node 0 cannot wait for the others at {place}: {error}. --master-addr is an address of node 0 itself, and "
            "--master-port a free port there."
        ) from error
    use_interface_of(own)
    ranks = [replace(found[rank], address=f"{found[rank].address}, node {rank // local}") for rank in sorted(found)]
    return OtherNodes(ranks, rendezvous)


def _admit(channel: Channel, settings: Mapping[str, str], refusal: str) -> None:
    """Compares a rank's settings with those of node 0, and tells it the result.

    Raises:
        ValueError: they differ, or the rank is refused for another reason.
    """
    try:
        theirs: Settings = channel.receive(Settings, _ANSWER_SECONDS)
    except msgspec.MsgspecError as error:
        raise ValueError(f"it sends no settings: {error}") from error
    refusal = differences(settings, theirs.values) or refusal
    channel.send(Admission(refusal), _ANSWER_SECONDS)
    if refusal:
        raise ValueError(refusal)


def join_first_node(model: ModelOptions, options: EngineOptions) -> list[Channel]:
    """Connects the ranks of a node other than the first to node 0; returns a channel for each.

    Raises:
        StartupError: node 0 is not there in time, or refuses the ranks.
    """
    parallel, settings = options.parallel, Settings(dict(settings_of(model, options)))
    nodes, local, secret = parallel.nodes, parallel.num_local_ranks, _secret(options)
    host, port = nodes.master_addr or "", nodes.master_port
    place, waiting = join_address(host, port), _Waiting()
    deadline = time.monotonic() + nodes.node_join_timeout_seconds
    with contextlib.ExitStack() as joined:
        channels: list[Channel] = []
        while len(channels) < local:
            rank = nodes.node_rank * local + len(channels)
            seconds = min(_TELL_SECONDS, deadline - time.monotonic())
            try:
                channels.append(_join(connect(host, port, secret, rank, len(channels), seconds), settings))
            except (PermissionError, EOFError) as error:
                raise StartupError(f"Node 0 at {place} refuses rank {rank}: {error}.") from error
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StartupError(
                        f"Node 0 is not at {place} after {nodes.node_join_timeout_seconds:g} s: {error}. Check "
                        "--master-addr and --master-port, or increase --node-join-timeout-seconds."
                    ) from error
                waiting.tell(f"node 0 at {place}")
            else:
                joined.callback(channels[-1].close)
        use_interface_of(own_address(host))
        joined.pop_all()
        return channels


def _join(channel: Channel, settings: Settings) -> Channel:
    """Sends node 0 the settings of a rank that has connected; returns its channel.

    Raises:
        PermissionError: node 0 refuses it.
        OSError, EOFError: node 0 has gone, or does not answer.
    """
    try:
        channel.send(settings, _ANSWER_SECONDS)
        admission: Admission = channel.receive(Admission, _ANSWER_SECONDS)
        if admission.refusal:
            raise PermissionError(admission.refusal)
    except BaseException:
        channel.close()
        raise
    return channel


def _secret(options: EngineOptions) -> bytes:
    return (options.parallel.executor.rank_secret or "").encode()


class _Waiting:
    """Says every few seconds what is waited for, in the log and to the supervisor."""

    def __init__(self) -> None:
        self._next = 0.0

    def tell(self, what: str) -> None:
        """To be called often."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TELL_SECONDS
            logger.info("waiting for %s", what)
            report(Stage.WAITING, message=what)
