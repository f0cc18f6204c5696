"""One list of sampling parameters, whose names the wire, the gateway and the engine share."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from engine_svc.service.convert import to_request
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.common import GenerationFields
from gateway.requests.convert import sampling_parameters
from quire.reasoning import ReasoningMarks
from quire.rpc.sampling import from_sampling
from quire.sampling import MODEL_DEFAULTS, SAMPLING_BOUNDS, LogitsProcessorCall, RepetitionDetection, SamplingParameters
from quire.v1 import common_pb2

ROOT = Path(__file__).parents[2]
EVERYTHING = SamplingParameters(
    n=3, max_tokens=7, min_tokens=2, temperature=0.5, top_p=0.25, top_k=4, min_p=0.125, repetition_penalty=1.5,
    presence_penalty=-1.0, frequency_penalty=2.0, seed=-5, stop_token_ids=(9, 8), ignore_eos=True,
    logit_bias=((2, -1.0), (5, 4.0)), logprobs=0, prompt_logprobs=3, processed_logprobs=True,
    logprob_token_ids=(7, 6), bad_words=((1,), (2, 3)), allowed_token_ids=(8, 9),
    repetition_detection=RepetitionDetection(5, 2, 3),
    thinking_token_budget=4, num_speculative_tokens=2, watermarking=True, routed_experts_prompt_start=3,
    vllm_xargs=b'{"a": 1}',
    logits_processors=(LogitsProcessorCall("a.B", b"[1]", b'{"c": 2}'), LogitsProcessorCall("d.E")),
    reasoning=ReasoningMarks((4, 5), (6,), True, True, (7,), (8,)),
)  # fmt: skip


def received(message: common_pb2.SamplingParams) -> SamplingParameters:
    return to_request(common_pb2.Generation(prompt_token_ids=[1], sampling=message)).sampling


def test_names_are_the_wires_and_the_gateways() -> None:
    assert set(SamplingParameters.__struct_fields__) == set(common_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
    assert set(SAMPLING_BOUNDS) <= set(GenerationFields.__struct_fields__)
    assert set(MODEL_DEFAULTS) < set(SAMPLING_BOUNDS)


def test_every_field_arrives() -> None:
    """Each field arrives with its own value instead of the neutral one."""
    neutral = msgspec.structs.asdict(SamplingParameters())
    assert all(value != neutral[name] for name, value in msgspec.structs.asdict(EVERYTHING).items())
    assert received(from_sampling(EVERYTHING)) == EVERYTHING
    assert received(common_pb2.SamplingParams()) == SamplingParameters()


def test_what_is_set_to_zero_is_not_what_is_unset() -> None:
    zeros = {"max_tokens": 0, "temperature": 0.0, "seed": 0, "logprobs": 0, "prompt_logprobs": 0}
    assert received(common_pb2.SamplingParams(**zeros)) == SamplingParameters(**zeros)  # type: ignore[arg-type]


def test_every_number_passes_the_gateway() -> None:
    numbers = {name: getattr(EVERYTHING, name) for name in SAMPLING_BOUNDS if name != "max_tokens"}
    body = ChatCompletionRequest(messages=[], **numbers)
    assert received(from_sampling(sampling_parameters(body, SamplingParameters()))) == SamplingParameters(**numbers)
    defaults = SamplingParameters(top_k=3, temperature=0.25)
    body = ChatCompletionRequest(messages=[], top_k=-1)
    assert received(from_sampling(sampling_parameters(body, defaults))) == SamplingParameters(temperature=0.25)


def test_a_parameter_is_named_in_few_files() -> None:
    """Adding a sampling parameter should touch few files.

    Those are the wire, the gateway's fields, the list, and what applies it (here a file, and kernels for GPUs and
    CPUs). Not counted: another API that translates or disables it, a benchmark that sends it, and the compatibility
    page that mentions it.
    """
    packages = ("protos", "quire", "gateway", "router", "tokenizer_svc", "engine_svc")
    files = [path for package in packages for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".proto")]
    files = [path for path in files if path.parent.name != "vllm_grpc"]
    named = [path for path in files if re.search(r"\bmin_p\b", path.read_text(encoding="utf-8"))]
    others = ("responses", "generative_scoring", "transcription", "bench", "fields")
    found = [path for path in named if "_pb2" not in path.name and path.stem not in others]
    assert len(found) <= 6, found
