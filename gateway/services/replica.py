"""One replica of a service behind the gateway: its session, and whether it gets new work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from quire.errors import QuireError
from quire.rpc.session import SessionLink
from quire.rpc.settings import LOST_SECONDS

Out = TypeVar("Out")
In = TypeVar("In")


class Replica(Generic[Out, In]):
    """Keeps the session with one replica up; when it is lost, its work can continue at another replica."""

    def __init__(
        self,
        name: str,
        channel: grpc.aio.Channel,
        open_session: Callable[[], grpc.aio.StreamStreamCall],
        new_frame: Callable[[], Out],
        on_frame: Callable[[In], None],
        on_lost: Callable[[QuireError], None],
    ) -> None:
        """
        Args:
            name: name of the service, for logs and errors.
            channel: closed when `run` ends.
        """
        # Number of streams and calls that it works on; maintained by the owner.
        self.live = 0
        # Whether its host name no longer resolves to it: it is dropped once idle.
        self.retired = False
        # Whether it has said that it is about to stop.
        self.draining = False
        self._channel = channel
        self._on_frame = on_frame
        self._heard = False
        self.link: SessionLink[Out, In] = SessionLink(
            name, open_session, new_frame, self._take_frame, on_lost, on_connected=self._begin,
            lost_seconds=LOST_SECONDS,
        )  # fmt: skip

    @property
    def busy(self) -> bool:
        """Whether it works on streams or calls."""
        return self.live > 0

    @property
    def connected(self) -> bool:
        """Whether the session is up. Only its first frame proves that: a frozen process accepts connections too."""
        return self.link.connected and self._heard

    @property
    def up(self) -> bool:
        """Whether it gets new work: not while its heartbeat is late."""
        return self.connected and not self.link.late

    @property
    def leaving(self) -> bool:
        """Whether others are preferred for new work."""
        return self.draining or self.retired

    async def run(self) -> None:
        """Keeps the session up until cancelled."""
        try:
            await self.link.run()
        finally:
            await self._channel.close()

    def _begin(self) -> None:
        self._heard = self.draining = False

    def _take_frame(self, frame: In) -> None:
        self._heard = True
        self._on_frame(frame)
