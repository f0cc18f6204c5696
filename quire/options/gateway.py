"""Options of the HTTP gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.errors import StartupError
from quire.options.admin import AdminOptions
from quire.options.base import ANY_WORD, option
from quire.options.lora import runtime_updating_option
from quire.options.reasoning import ReasoningOptions
from quire.options.responses import ResponsesOptions
from quire.options.seed import seed_option
from quire.options.server import LOOPBACK
from quire.options.settling import drain_settle_option
from quire.options.tokenizer_init import SKIP_FLAG, skip_tokenizer_option
from quire.options.tools import ToolOptions


@dataclass(frozen=True)
class GatewayOptions:
    """The OpenAI-compatible HTTP server."""

    group: ClassVar[str] = "Frontend"

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on.", minimum=1, maximum=65535)
    uds: str | None = option(
        None, "Unix socket to listen on in place of --host and --port. Its file is made with what the umask leaves of "
        "permissions, and removed at the end. Clients name it unix:PATH.", metavar="PATH",
    )  # fmt: skip
    uds_descriptor: int | None = option(
        None, "Descriptor of a socket that listens there already. `quire serve` sets it.", metavar="NUMBER", minimum=0
    )
    shared_port_folder: str = option(
        "", "Lets several gateways of this machine listen on the port (SO_REUSEPORT). A folder of theirs, where they "
        "tell each other what /metrics and /load are to say of all. `quire serve` sets it for --api-server-count.",
        metavar="FOLDER",
    )  # fmt: skip
    api_key: tuple[str, ...] = option(
        (), "Key that every request must bring (`Authorization: Bearer …`). Takes several words.", secret=True,
        variables=("VLLM_API_KEY",), following=ANY_WORD,
    )  # fmt: skip
    insecure: bool = option(False, "Allows listening beyond this machine without protection.")
    root_path: str = option("", "Path under which a proxy in front serves this server.")
    ssl_keyfile: str | None = option(None, "Private key (PEM, without a passphrase) for HTTPS.")
    ssl_certfile: str | None = option(None, "Certificate (PEM) for HTTPS.")
    ssl_ca_certs: str | None = option(None, "Authorities (PEM) that client certificates must come from.")
    ssl_cert_reqs: int = option(0, "Whether clients need a certificate: 0 no, 1 optional, 2 yes.", minimum=0, maximum=2)
    enable_ssl_refresh: bool = option(
        False,
        "Reads the files of HTTPS again when they change; connections made from then on get the new certificate, and "
        "need one of the authorities that are there then.",
    )
    allowed_origins: tuple[str, ...] = option((), "Origins that browsers may call from; none by default.")
    allowed_methods: tuple[str, ...] = option(("*",), "Methods that those origins may use.")
    allowed_headers: tuple[str, ...] = option(("*",), "Headers that those origins may send.")
    allow_credentials: bool = option(False, "Lets those origins send credentials.")
    uvicorn_log_level: str = option(
        "info", "Least level of the HTTP server's log.",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
    )  # fmt: skip
    disable_uvicorn_access_log: bool = option(False, "Leaves the line for each HTTP request out of the log.")
    middleware: tuple[str, ...] = option(
        (), "Middleware of your own (package.module.Name): a class as ASGI has it, or an async function of a request "
        "and what answers it. Repeatable; what has no key does not reach it.",
    )  # fmt: skip
    enable_log_requests: bool = option(
        False, "Writes each request into the log: the token ids of its prompts, and how it is sampled. Whoever reads "
        "the log then knows what was asked.",
    )  # fmt: skip
    enable_log_outputs: bool = option(False, "Writes what each choice said as well; with --enable-log-requests.")
    max_log_len: int | None = option(
        None, "Most token ids of a prompt, and characters of an output, in the log; all by default.", minimum=0
    )
    log_error_stack: bool = option(False, "Writes where errors of requests came from into the log.")
    enable_request_id_headers: bool = option(False, "Adds X-Request-Id to every answer.")
    enable_prompt_tokens_details: bool = option(False, "Adds prompt_tokens_details to usage.")
    enable_force_include_usage: bool = option(False, "Adds usage to every stream, asked for or not.")
    return_tokens_as_token_ids: bool = option(False, "Shows tokens in logprobs as token_id:N.")
    disable_fastapi_docs: bool = option(False, "Turns /docs, /redoc and /openapi.json off.")
    page: bool = option(
        True, "Serves a page at / to talk to the model on and to watch the fleet; it asks for a key itself."
    )
    allow_runtime_lora_updating: bool = runtime_updating_option()
    enable_tokenizer_info_endpoint: bool = option(
        False, "Turns /tokenizer_info and /get_tokenizer_info on, which tell the tokenizer's configuration and its "
        "chat template.",
    )  # fmt: skip
    enable_scale_out: bool = option(
        False, "Turns the routes on by which others split a request into its parts: /inference/v1/generate and "
        "abort_requests, /v1/…/render and /v1/…/derender.",
    )  # fmt: skip
    server_dev_mode: bool = option(
        False, "Turns routes on that are for developers: /server_info, and those of --admin-port, here where clients "
        "are. They tell more than clients should know, and do more than clients should do.",
        variables=("VLLM_SERVER_DEV_MODE",),
    )  # fmt: skip
    response_role: str = option("assistant", "Role of the answers of chat completions.")
    router_address: tuple[str, ...] = option(
        ("127.0.0.1:50051",), "The router (host:port). Repeatable, for its replicas: each gets a share of the "
        "requests, and takes over those of one that is lost. Under `quire serve`: used, with its engines, in place of "
        "local ones.",
    )  # fmt: skip
    tokenizer_address: tuple[str, ...] = option(
        ("127.0.0.1:50052",), "The tokenizer service (host:port). Repeatable, for its replicas, and every address "
        "behind a name is one: they share the work, and take over that of one that is lost. Under "
        "`quire serve`: used in place of a local one.",
    )  # fmt: skip
    skip_tokenizer_init: bool = skip_tokenizer_option()
    seed: int | None = seed_option()
    request_timeout_seconds: float = option(3600.0, "Longest time that a request may take.", minimum=0.1)
    max_body_bytes: int = option(8 * 2**20, "Largest request body.", minimum=1024)
    max_choices_per_request: int = option(
        1024, "Most choices of a request: its prompts times n.", minimum=1, maximum=16384
    )
    max_tokens_per_request: int = option(
        2**24, "Most tokens that a request may come to: those of its prompts, and max_tokens (where it sets none, what "
        "fits the model) for each choice.", minimum=1,
    )  # fmt: skip
    max_connections: int = option(4096, "Most connections at a time; more are answered with 503.", minimum=1)
    h11_max_incomplete_event_size: int = option(
        64 * 1024, "Most bytes of a request's headers.", minimum=1024, maximum=2**24
    )
    h11_max_header_count: int = option(256, "Most headers of a request.", minimum=1)
    header_timeout_seconds: float = option(10.0, "Time for a request's headers to come.", minimum=0.1)
    body_timeout_seconds: float = option(30.0, "Time for a request's body to come.", minimum=0.1)
    drain_settle_seconds: float = drain_settle_option()
    drain_timeout_seconds: float = option(
        90.0, "After that, time for running requests to finish; a second signal ends it. Those that have not "
        "finished then get an error: 503, or an event at the end of their stream.", minimum=0.0,
    )  # fmt: skip

    admin: AdminOptions = AdminOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    tools: ToolOptions = ToolOptions()
    responses: ResponsesOptions = ResponsesOptions()

    @property
    def stop_seconds(self) -> float:
        """Seconds that the server may take to stop."""
        return self.drain_settle_seconds + self.drain_timeout_seconds

    def check(self) -> None:
        """Checks that the options are consistent and that no open server is exposed.

        Raises:
            StartupError: a key is empty or padded; or options are inconsistent: the address is reachable from other
                machines and no key is required; credentials are allowed from everywhere; half of TLS is set, or its
                files are malformed; reasoning without a parser; parsers without text; a response store that does not
                exist.
        """
        for flag, keys in (("--api-key", self.api_key), ("--admin-api-key", self.admin.admin_api_key)):
            if any(not key or key != key.strip() for key in keys):
                raise StartupError(
                    f"A key of {flag} is empty or has blanks around it, and no request can bring it: set another. Was "
                    "it to come from a variable that is not set?"
                )
        if not self.uds and self.host not in LOOPBACK and not self.api_key and not self.insecure:
            raise StartupError(
                f"--host {self.host} is reachable from other machines and no --api-key is set. Set one "
                "(or QUIRE_API_KEY), or pass --insecure if something in front protects the server."
            )
        if "*" in self.allowed_origins and self.allow_credentials:
            raise StartupError(
                "--allow-credentials with --allowed-origins '*' would let any web page act as its visitor."
            )
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise StartupError("HTTPS needs both --ssl-keyfile and --ssl-certfile.")
        if self.ssl_keyfile and self.ssl_certfile:
            from quire.certificates import server_context  # imported late: ssl is slow to import, and rarely needed

            server_context(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)
        if self.enable_ssl_refresh and not self.ssl_certfile:
            raise StartupError("--enable-ssl-refresh is for HTTPS: set --ssl-certfile and --ssl-keyfile too.")
        self.admin.check(0 if self.uds else self.port, self.api_key, insecure=self.insecure)
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
                raise StartupError(f"{flag} reads text, and with {SKIP_FLAG} there is none; leave one of the two out.")
