"""Constants of the gRPC connections, in one place.

Measured with grpcio 1.85: `keepalive_timeout_ms` does not bound how long a frozen peer goes unnoticed,
`ping_timeout_ms` does (its default is 60 s); and a server without `min_ping_interval_without_data_ms` ends a pinging
client's silent stream after three pings.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 * 2**20  # for the images of a prompt; all else is far smaller

# Application heartbeats on sessions: pings prove only that gRPC's own threads run.
HEARTBEAT_SECONDS = 0.25
# A peer this late gets no new requests; a link this late is broken off, and its streams continue elsewhere.
LATE_SECONDS = 1.0
LOST_SECONDS = 2.0

CONNECT_SECONDS = 2.0
CALL_SECONDS = 10.0

_COMMON = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

SERVER_ARGUMENTS = (
    *_COMMON,
    # Two servers on one port would share its connections silently.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_ARGUMENTS = (
    *_COMMON,
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_SECONDS)),  # time limit for establishing a connection
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Each channel must reconnect to a restarted peer by itself, not share another channel's broken connection.
    ("grpc.use_local_subchannel_pool", 1),
)
