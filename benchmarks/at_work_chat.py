"""Single chats that `benchmarks.at_work` tries."""

from __future__ import annotations

import math
import time

from benchmarks.at_work_stack import MODEL, Stack, compared, complete, expect, until, with_tops

_PROMPT = "What is a block?"
_TEMPLATE_TOKENS = 19  # tokens that benchmarks.models.TEMPLATE adds around one user message
_TOKENS = 24
_TOPS = 5
_SLEEP_SECONDS = 10.0


async def whole_and_streamed(stack: Stack) -> str:
    """A greedy answer, unstreamed and streamed."""
    [whole] = await stack.ask(_PROMPT, _TOKENS, **with_tops())
    streamed = await stack.stream(_PROMPT, _TOKENS, **with_tops())
    complete([whole, streamed], _TOKENS)
    words = compared(whole, streamed, stack.is_invariant)
    if words == "equal":
        expect(whole.text == streamed.text, f"{whole.text!r} whole, {streamed.text!r} streamed")
    prompt = _TEMPLATE_TOKENS + len(_PROMPT)
    for usage in (whole.usage, streamed.usage):
        expect(usage.prompt_tokens == prompt, f"{usage.prompt_tokens} tokens of a prompt of {prompt}")
        expect(usage.total_tokens == prompt + _TOKENS, f"{usage.total_tokens} tokens in all")
    return f"{words}; usage is {prompt} + {_TOKENS}"


async def two_choices(stack: Stack) -> str:
    """Two choices for one prompt, sampled independently."""
    answers = await stack.ask(_PROMPT, _TOKENS, n=2, temperature=1, seed=1)
    expect(len(answers) == 2, f"{len(answers)} choices")
    expect(all(len(answer.ids) == _TOKENS for answer in answers), f"{[len(answer.ids) for answer in answers]} tokens")
    expect(answers[0].ids != answers[1].ids, "both choices are the same")
    counted = answers[0].usage.completion_tokens
    expect(counted == 2 * _TOKENS, f"{counted} tokens counted for both")
    return f"{counted} tokens in both"


async def log_probabilities(stack: Stack) -> str:
    """Log-probabilities, read with the SDK's own classes."""
    completion = await stack.client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": _PROMPT}], max_tokens=_TOKENS, temperature=0,
        logprobs=True, top_logprobs=_TOPS, extra_body={"ignore_eos": True},
    )  # fmt: skip
    scores = completion.choices[0].logprobs
    tokens = (scores and scores.content) or []
    expect(len(tokens) == _TOKENS, f"log-probabilities of {len(tokens)} tokens")
    for token in tokens:
        tops = [top.logprob for top in token.top_logprobs]
        expect(len(tops) == _TOPS and all(map(math.isfinite, tops)), f"the likeliest have {tops}")
        expect(tops == sorted(tops, reverse=True), f"not sorted: {tops}")
        expect(token.logprob == tops[0] <= 0, f"the greedy token has {token.logprob}, the likeliest {tops}")
    return f"finite, sorted, the greedy token first; {tokens[0].logprob:.2f} is the first one's"


async def seeds(stack: Stack) -> str:
    """The same seed twice, then another one."""
    asked = [await stack.ask(_PROMPT, _TOKENS, temperature=1, seed=seed) for seed in (7, 7, 8)]
    first, again, other = (answers[0].ids for answers in asked)
    expect(len(first) == _TOKENS, f"{len(first)} tokens")
    expect(first == again, f"{first}, then {again}")
    expect(first != other, "another seed gives the same tokens")
    return "the same tokens twice, others by another seed"


async def prefix_hit(stack: Stack) -> str:
    """A long prompt that is computed, then found in the prefix cache."""
    length = stack.scale.prompt_tokens
    prompt = "".join(f"{number} is the {number}th. " for number in range(length))[:length]
    [computed] = await stack.ask(prompt, _TOKENS, **with_tops())
    [found] = await stack.ask(prompt, _TOKENS, **with_tops())
    complete([computed, found], _TOKENS)
    before, cached = (each.usage.prompt_tokens_details.cached_tokens for each in (computed, found))
    expect(before < length // 2, f"{before} tokens were found the first time")
    expect(cached > length // 2, f"{cached} of {length} tokens were found the second time")
    words = compared(computed, found, stack.is_invariant)
    return f"{cached:,} of {found.usage.prompt_tokens:,} tokens found; {words}"


async def slept(stack: Stack) -> str:
    """The weights go to host memory and come back."""
    [before] = await stack.ask(_PROMPT, _TOKENS, **with_tops())
    begin = time.monotonic()
    await stack.administer("sleep?level=1")
    asleep = time.monotonic()

    async def is_asleep() -> bool:
        return await stack.metric("vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1

    await until(is_asleep, _SLEEP_SECONDS, "no metric says that the weights are in host memory")
    woken = time.monotonic()
    await stack.administer("wake_up")
    awake = time.monotonic()
    [after] = await stack.ask(_PROMPT, _TOKENS, **with_tops())
    words = compared(before, after, stack.is_invariant)
    return f"asleep within {asleep - begin:.1f} s, awake within {awake - woken:.1f} s; {words}"
