"""Ranks placed by Ray on a cluster of two nodes on this machine."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_svc.executor.base import Executor, ExecutorDead, create_executor
from engine_svc.plan import CacheSize, StepPlan
from quire.errors import StartupError
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.launched_ranks import COUNT, PROMPTS, generate, part
from tests.support.tiny_models import make_model, reference_tokens

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")]
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes, each with room for one rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray
        from ray.cluster_utils import Cluster

        nodes = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
        nodes.add_node(**NODE)
        patch.setenv("RAY_ADDRESS", nodes.address)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama-untied")


@contextlib.contextmanager
def loaded(folder: Path, **given: Any) -> Iterator[Executor]:
    options = engine_options(
        dtype="float32", max_num_seqs=2, block_size=16, use_tqdm_on_load=False, cpu_threads=1, tensor_parallel_size=2,
        distributed_executor_backend="ray", **given,
    )  # fmt: skip
    executor = create_executor(options.parallel)
    try:
        executor.load(ModelOptions(model=str(folder)), options)
        executor.allocate(CacheSize(8))
        yield executor
    finally:
        executor.close()


def test_what_has_no_room_says_so(cluster: Any, folder: Path) -> None:
    with pytest.raises(StartupError, match="must name 2 bundles"), loaded(folder, ray_bundle_indices="0,1"):
        pass
    with pytest.raises(StartupError, match="expected comma-separated numbers"), loaded(folder, ray_bundle_indices="a"):
        pass


def test_two_nodes_answer_as_one_rank_until_one_of_them_is_lost(cluster: Any, folder: Path) -> None:
    with loaded(folder) as executor:
        answers = [generate(executor, prompt) for prompt in PROMPTS]
        assert answers == reference_tokens(folder, PROMPTS, COUNT)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        with pytest.raises(ExecutorDead, match=r"^rank \d \(process \d+ on .* of Ray\) has "):
            run_forever(executor)


def run_forever(executor: Executor) -> None:
    for step in itertools.count(len(PROMPTS[-1]) + COUNT):
        executor.submit(StepPlan(step, [], [part(step % 100, 1)]))
        executor.collect()
