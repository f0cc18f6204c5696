"""Options of the HTTP gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from quire.api_keys import ApiKey, key_digest, read_api_keys
from quire.bounds import RESERVED_TEMPLATE_VARIABLES
from quire.errors import StartupError
from quire.options.admin import AdminOptions
from quire.options.base import ANY_WORD, groups_of, option
from quire.options.lora import runtime_updating_option
from quire.options.media import MediaOptions
from quire.options.reasoning import ReasoningOptions
from quire.options.responses import ResponsesOptions
from quire.options.seed import seed_option
from quire.options.server import LOOPBACK
from quire.options.settling import drain_settle_option
from quire.options.tokenizer_init import SKIP_FLAG, skip_tokenizer_option
from quire.options.tools import ToolOptions

# All options that apply to --grpc too; the others are for HTTP, or for what only HTTP requests ask for.
_ALSO_FOR_GRPC = (
    "host", "port", "grpc", "api_key", "api_key_file", "insecure", "enable_log_requests", "enable_log_outputs",
    "max_log_len", "log_error_stack", "enable_kv_transfer_params", "server_dev_mode", "router_address",
    "tokenizer_address", "skip_tokenizer_init", "seed", "request_timeout_seconds", "max_choices_per_request",
    "max_tokens_per_request", "drain_settle_seconds", "drain_timeout_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class GatewayOptions:
    """OpenAI-compatible HTTP server."""

    group: ClassVar[str] = "Frontend"

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on.", minimum=1, maximum=65535)
    grpc: bool = option(
        False, "Serves vllm.grpc.engine.VllmEngine on --host and --port instead of HTTP: the gRPC service by which "
        "other gateways and routers, such as SMG, use a vLLM server. Needs the package smg-grpc-proto "
        "(`pip install 'quire[grpc]'`).",
    )  # fmt: skip
    uds: str | None = option(
        None, "Unix socket to listen on instead of --host and --port. Its file gets the permissions that the umask "
        "allows, and is removed at the end. Clients connect to unix:PATH.", metavar="PATH",
    )  # fmt: skip
    uds_descriptor: int | None = option(
        None,
        "File descriptor of a socket that is already listening at --uds. Set by `quire serve`.",
        metavar="NUMBER",
        minimum=0,
    )
    shared_port_folder: str = option(
        "", "Lets several gateways on this machine listen on the same port (SO_REUSEPORT): a folder in which they "
        "share what /metrics and /load report for all of them. Set by `quire serve` for --api-server-count.",
        metavar="FOLDER",
    )  # fmt: skip
    api_key: tuple[str, ...] = option(
        (), "Key that every request must bring (`Authorization: Bearer …`). Takes several words.", secret=True,
        variables=("VLLM_API_KEY",), following=ANY_WORD,
    )  # fmt: skip
    api_key_file: str | None = option(
        None, "JSON file of named keys, beside those of --api-key: each with its limits of requests and tokens per "
        "minute and of concurrent requests, its share in the routers' queues, and its most urgent priority "
        "(docs/keys.md). Read again when it changes. Each gateway process applies the limits by itself: with several, "
        "a key gets them from each.",
        metavar="PATH",
    )  # fmt: skip
    metrics_without_key: bool = option(
        False, "Serves /metrics without a key, where other paths need one. Whoever can reach it learns how much is "
        "asked, and the names of the models and of the keys in --api-key-file.",
    )  # fmt: skip
    insecure: bool = option(
        False, "Allows listening on addresses that other machines can reach without protection by a key or TLS."
    )
    root_path: str = option("", "Path under which a reverse proxy serves this server.")
    ssl_keyfile: str | None = option(None, "Private key (PEM, without a passphrase) for HTTPS.")
    ssl_certfile: str | None = option(None, "Certificate (PEM) for HTTPS.")
    ssl_ca_certs: str | None = option(None, "Certificate authorities (PEM) that must have signed client certificates.")
    ssl_cert_reqs: int = option(
        0, "Whether clients need a certificate: 0 no, 1 optional, 2 required.", minimum=0, maximum=2
    )
    ssl_ciphers: str | None = option(
        None, "Ciphers that HTTPS may use up to TLS 1.2, in OpenSSL's notation, such as ECDHE+AESGCM. TLS 1.3 always "
        "has its own. Default: OpenSSL's.", metavar="CIPHERS",
    )  # fmt: skip
    enable_ssl_refresh: bool = option(
        False,
        "Reloads the HTTPS files when they change; new connections get the new certificate and are checked against the "
        "new certificate authorities.",
    )
    allowed_origins: tuple[str, ...] = option((), "Origins that browsers may send requests from; none by default.")
    allowed_methods: tuple[str, ...] = option(("*",), "Methods that those origins may use.")
    allowed_headers: tuple[str, ...] = option(("*",), "Headers that those origins may send.")
    allow_credentials: bool = option(False, "Lets those origins send credentials.")
    uvicorn_log_level: str = option(
        "info", "Lowest level that the HTTP server logs.",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
    )  # fmt: skip
    disable_uvicorn_access_log: bool = option(False, "Turns off the log line for each HTTP request.")
    disable_access_log_for_endpoints: str = option(
        "", "Paths, separated by commas, whose requests are not logged, beside those of probes, /metrics and /load, "
        "which never are.",
        metavar="PATHS",
    )  # fmt: skip
    middleware: tuple[str, ...] = option(
        (), "Your own middleware (package.module.Name): an ASGI class, or an async function of a request and the next "
        "handler. Repeatable; requests without a valid key do not reach it.",
    )  # fmt: skip
    enable_log_requests: bool = option(
        False, "Logs each request: the token ids of its prompts, and its sampling parameters. Whoever can read the log "
        "can then tell what was asked.",
    )  # fmt: skip
    enable_log_outputs: bool = option(False, "Also logs the output of each choice; needs --enable-log-requests.")
    max_log_len: int | None = option(
        None,
        "Maximum number of token ids of a prompt, and of characters of an output, in the log; unlimited by default.",
        minimum=0,
    )
    log_error_stack: bool = option(False, "Logs the stack trace of each request error.")
    enable_request_id_headers: bool = option(False, "Adds X-Request-Id to every response.")
    enable_prompt_tokens_details: bool = option(False, "Adds prompt_tokens_details to usage.")
    enable_force_include_usage: bool = option(False, "Adds usage to every stream, whether requested or not.")
    return_tokens_as_token_ids: bool = option(False, "Shows tokens in logprobs as token_id:N.")
    disable_fastapi_docs: bool = option(False, "Turns off /docs, /redoc and /openapi.json.")
    page: bool = option(
        True,
        "Serves a web page at / to chat with the model and watch the fleet; the page asks for a key if one is needed.",
    )
    allow_runtime_lora_updating: bool = runtime_updating_option()
    enable_tokenizer_info_endpoint: bool = option(
        False, "Turns on /tokenizer_info and /get_tokenizer_info, which return the tokenizer's configuration and chat "
        "template.",
    )  # fmt: skip
    enable_scale_out: bool = option(
        False, "Turns on the routes that split a request into its stages: /inference/v1/generate and abort_requests, "
        "/v1/…/render and /v1/…/derender.",
    )  # fmt: skip
    enable_kv_transfer_params: bool = option(
        False, "Lets requests have kv_transfer_params, by which a proxy has one server compute a prompt and another "
        "one generate from it. Their workers need GrpcConnector (--kv-transfer-config), and both servers the same "
        "--grpc-token. Answers then name the addresses of workers.",
    )  # fmt: skip
    server_dev_mode: bool = option(
        False, "Turns on developer routes on the clients' port: /server_info, and those of --admin-port. They reveal "
        "more than clients should know, and do more than clients should do.",
        variables=("VLLM_SERVER_DEV_MODE",),
    )  # fmt: skip
    response_role: str = option("assistant", "Role of answers in chat completions.")
    default_chat_template_kwargs: dict[str, Any] = option(
        {}, 'Variables for the chat template, as JSON, such as {"enable_thinking": false}. Those that a request sets '
        "(`chat_template_kwargs`, `reasoning_effort`) take precedence.",
    )  # fmt: skip
    stream_interval: int = option(
        1, "Minimum number of tokens of an event of a stream, except for a choice's first and last one; requests may "
        "set another number.", minimum=1,
    )  # fmt: skip
    sse_keep_alive_interval: int = option(
        0, "Seconds of silence after which a stream gets a comment, so that proxies keep it open. 0 means every 15 "
        "seconds, but nothing before the first token, so that a request which fails until then gets its proper status; "
        "with a number, the error is an event of the stream instead.", minimum=0,
    )  # fmt: skip
    router_address: tuple[str, ...] = option(
        ("127.0.0.1:50051",), "Address of the router (host:port). Repeatable, for replicas; every address behind a DNS "
        "name is a replica. Each gets a share of the requests, and takes over those of a replica that is lost. Under "
        "`quire serve`: used, with its engines, instead of local ones.",
    )  # fmt: skip
    tokenizer_address: tuple[str, ...] = option(
        ("127.0.0.1:50052",), "Address of the tokenizer service (host:port). Repeatable, for replicas; every address "
        "behind a DNS name is a replica. Replicas share the work, and take over that of one that is lost. Under `quire "
        "serve`: used instead of a local one.",
    )  # fmt: skip
    skip_tokenizer_init: bool = skip_tokenizer_option()
    seed: int | None = seed_option()
    request_timeout_seconds: float = option(3600.0, "Maximum time for a request.", minimum=0.1)
    max_body_bytes: int | None = option(
        None, "Maximum size of a request body. By default 8 MiB, or 72 MiB while a model is served that reads images, "
        "videos or audio.", minimum=1024,
    )  # fmt: skip
    realtime_segment_seconds: float = option(
        10.0, "Seconds of audio after which /v1/realtime transcribes what has arrived, at a quiet place, if the client "
        "does not ask for it earlier (input_audio_buffer.commit). Models that write while they hear need no segments.",
        minimum=1.0, maximum=30.0,
    )  # fmt: skip
    realtime_idle_seconds: float = option(
        60.0, "Seconds without any event after which /v1/realtime closes a connection.", minimum=0.1
    )
    max_choices_per_request: int = option(
        1024, "Maximum number of choices per request: its prompts times n.", minimum=1, maximum=16384,
        variables=("VLLM_MAX_N_SEQUENCES",),
    )  # fmt: skip
    max_tokens_per_request: int = option(
        2**24, "Maximum number of tokens per request: those of its prompts, plus max_tokens for each choice (if not "
        "set, what fits the model).", minimum=1,
    )  # fmt: skip
    max_connections: int = option(4096, "Maximum number of connections; further ones are answered with 503.", minimum=1)
    h11_max_incomplete_event_size: int = option(
        64 * 1024, "Maximum size of a request's headers in bytes.", minimum=1024, maximum=2**24
    )
    h11_max_header_count: int = option(256, "Maximum number of headers per request.", minimum=1)
    header_timeout_seconds: float = option(10.0, "Maximum time for a request's headers to arrive.", minimum=0.1)
    body_timeout_seconds: float = option(30.0, "Maximum time for a request's body to arrive.", minimum=0.1)
    drain_settle_seconds: float = drain_settle_option()
    drain_timeout_seconds: float = option(
        90.0, "After that, maximum time for running requests to finish; a second signal ends it. Requests that have "
        "not finished by then get an error: 503, or an event at the end of their stream.", minimum=0.0,
    )  # fmt: skip

    admin: AdminOptions = AdminOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    tools: ToolOptions = ToolOptions()
    media: MediaOptions = MediaOptions()
    responses: ResponsesOptions = ResponsesOptions()

    @property
    def stop_seconds(self) -> float:
        """Seconds that the server may take to stop."""
        return self.drain_settle_seconds + self.drain_timeout_seconds

    @property
    def needs_key(self) -> bool:
        """Whether requests need a key."""
        return bool(self.api_key or self.api_key_file)

    def named_keys(self) -> tuple[ApiKey, ...]:
        """Reads --api-key-file; without one, there are none.

        Raises:
            StartupError: the file cannot be read, or its content is wrong.
        """
        if self.api_key_file is None:
            return ()
        keys = {"--api-key": self.api_key, "--admin-api-key": self.admin.admin_api_key}
        taken = {key_digest(key): f"one of {flag}" for flag, given in keys.items() for key in given}
        return read_api_keys(self.api_key_file, taken)

    def _check_grpc(self) -> None:
        """
        Raises:
            StartupError: --grpc is set, and an option that is for HTTP.
        """
        given = [
            field.flag
            for field in groups_of(GatewayOptions)[0].fields
            if field.name not in _ALSO_FOR_GRPC and getattr(self, field.name) != field.default
        ]
        if self.grpc and given:
            raise StartupError(f"With --grpc there is no HTTP on the clients' port: leave out {', '.join(given)}.")

    def check(self) -> None:
        """Checks that the options are consistent and that no open server is exposed.

        Raises:
            StartupError: a key is empty or padded, or the file of keys is wrong; or options are inconsistent: the
                address is reachable from other machines and no key is required; credentials are allowed from
                everywhere; half of TLS is set, or its files are malformed; template variables that requests set;
                reasoning without a parser; parsers without text; a response store that does not exist.
        """
        for flag, keys in (("--api-key", self.api_key), ("--admin-api-key", self.admin.admin_api_key)):
            if any(not key or key != key.strip() for key in keys):
                raise StartupError(
                    f"A key of {flag} is empty or has spaces around it, so no request can match it. Set another key; "
                    "perhaps the variable that it comes from is not set."
                )
        self.named_keys()
        if not self.uds and self.host not in LOOPBACK and not self.needs_key and not self.insecure:
            raise StartupError(
                f"--host {self.host} is reachable from other machines and no --api-key is set. Set one "
                "(or QUIRE_API_KEY, or --api-key-file), or pass --insecure if something in front protects the server."
            )
        self._check_grpc()
        if "*" in self.allowed_origins and self.allow_credentials:
            raise StartupError(
                "--allow-credentials with --allowed-origins '*' would let any web page act as its visitor. Leave out "
                "--allow-credentials, or list the origins."
            )
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise StartupError("HTTPS needs both --ssl-keyfile and --ssl-certfile.")
        if self.ssl_keyfile and self.ssl_certfile:
            from quire.certificates import load_certificates  # imported late: ssl is slow to import, and rarely needed

            load_certificates("--ssl", self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, self.ssl_ciphers)
        for flag, given in (("--enable-ssl-refresh", self.enable_ssl_refresh), ("--ssl-ciphers", self.ssl_ciphers)):
            if given and not self.ssl_certfile:
                raise StartupError(f"{flag} is for HTTPS: also set --ssl-certfile and --ssl-keyfile.")
        self.admin.check(0 if self.uds else self.port, self.api_key, insecure=self.insecure)
        for variable in RESERVED_TEMPLATE_VARIABLES:
            if variable in self.default_chat_template_kwargs:
                raise StartupError(f"--default-chat-template-kwargs must not set {variable!r}, which requests set.")
        if self.enable_log_outputs and not self.enable_log_requests:
            raise StartupError("--enable-log-outputs needs --enable-log-requests.")
        self.reasoning.check()
        self.tools.check(self.reasoning.parser)
        self.responses.check()
        parsers = {
            "--reasoning-parser": self.reasoning.parser, "--tool-call-parser": self.tools.tool_call_parser,
        }  # fmt: skip
        for flag, name in parsers.items():
            if name and self.skip_tokenizer_init:
                raise StartupError(f"{flag} reads text, but there is none with {SKIP_FLAG}. Leave out one of the two.")
