"""KV blocks in a folder of this machine, into which a worker pulls what it lacks from the worker that has computed it.

The folder is the buffer at both ends: a prefill worker saves what it computes there and serves it from there
(engine_svc/service/kv_blocks.py), and who continues a request has the blocks copied to its own folder and loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.shared_storage import SharedStorage
from engine_svc.plan import BlockTransfer, Transfers
from quire.options.kv_transfer import KvTransferConfig


class Puller(Protocol):
    """Copies blocks from another worker's folder to this machine's."""

    def pull(self, source: str, namespace: str, names: Sequence[BlockName], seconds: float) -> Future[None]:
        """Starts the copy. May be called in any thread.

        Args:
            source: address of the worker.
            namespace: see SharedStorage.
            seconds: it ends after this time at the latest.

        Returns:
            A future that is done when no more comes, whatever has come. Cancelling it ends the copy.
        """


class _Awaited(NamedTuple):
    """A load whose blocks are on their way."""

    pull: Future[None]
    transfer: BlockTransfer


class PulledStorage(SharedStorage):
    """Promises what another worker is said to have, and pulls it before it is loaded.

    What does not come is missing when the files are read, as if it had been deleted.
    """

    def __init__(
        self, config: KvTransferConfig, namespace: Callable[[], str], puller: Puller, num_ranks: int = 1
    ) -> None:
        """See SharedStorage."""
        super().__init__(config, namespace, num_ranks)
        self._puller = puller
        self._source = ""
        self._expected: frozenset[bytes] = frozenset()
        self._awaited: dict[int, _Awaited] = {}  # by transfer

    def expect(self, hashes: Sequence[bytes], source: str) -> None:
        """See KvConnector.expect."""
        self._expected, self._source = frozenset(hashes if self._loads_any else ()), source

    def has(self, name: BlockName) -> bool:
        """See KvConnector.has."""
        return name.block_hash in self._expected or super().has(name)

    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """See KvConnector.load."""
        absent = [name for name in names if not self._is_whole(name)]
        if not absent or not self._source:
            super().load(key, names, block_ids)
            return
        pull = self._puller.pull(self._source, self._namespace(), absent, self.wait_seconds(names))
        self._awaited[key] = _Awaited(pull, BlockTransfer(list(block_ids), self._places(names), key))

    def cancel(self, key: int) -> None:
        """See KvConnector.cancel."""
        if awaited := self._awaited.pop(key, None):
            awaited.pull.cancel()
        super().cancel(key)

    def take_transfers(self) -> Transfers:
        """See KvConnector.take_transfers; loads begin once their blocks have been pulled."""
        for key in [key for key, awaited in self._awaited.items() if awaited.pull.done()]:
            self._loads.append(self._awaited.pop(key).transfer)
        return super().take_transfers()
