"""Random arrivals, aborts, forks, drafts, shortage, remote blocks: nothing leaks, all finish, tokens are unchanged."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.layer_groups import most_blocks, tokens_under_way
from engine_svc.plan import CacheSize, StepPlan
from engine_svc.requests.admission import sequence_seed
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.fake_drafter import FakeDrafter
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan
from tests.support.remote_connector import Fare, Remote, RemoteConnector, list_store

VOCABULARY = 50
BLOCK = 4
END = (7, 8, 9)
FARES = st.builds(Fare, st.none() | st.integers(0, 6), most=st.integers(0, 6), lingers=st.integers(0, 4))
STOP = 11


class EngineMachine(RuleBasedStateMachine):
    """Drives an engine whose executor checks the cached contents of every context in every step."""

    @initialize(
        spare=st.integers(0, 14), slots=st.integers(1, 6), budget=st.integers(1, 48), caching=st.booleans(),
        chunked=st.booleans(), policy=st.sampled_from(["fcfs", "priority"]), partial=st.integers(1, 3),
        long=st.integers(1, 3), threshold=st.integers(0, 12), host=st.integers(0, 12), in_flight=st.integers(1, 2),
        windows=st.lists(st.none() | st.integers(2, 16), min_size=1, max_size=3), drafts=st.integers(0, 5),
        fares=st.lists(FARES, max_size=3), stages=st.sampled_from([1, 1, 2, 4]),
    )  # fmt: skip
    def start(
        self, spare: int, slots: int, budget: int, caching: bool, chunked: bool, policy: str, partial: int,
        long: int, threshold: int, host: int, in_flight: int, windows: list[int | None], drafts: int,
        fares: list[Fare], stages: int,
    ) -> None:  # fmt: skip
        self.length = 40
        budget = budget if chunked else max(budget, self.length)
        blocks = spare + sum(
            most_blocks(window, self.length, BLOCK, tokens_under_way(budget, stages)) for window in windows
        )
        self.begun = 0
        self.faults: set[int] = set()
        keeps = caching  # blocks that the device evicts go to host memory, and those that it computes to a remote store
        remote = Remote(20, lambda key: fares[key % len(fares)], lambda key: Fare(key % 5)) if keeps and fares else None
        executor = FakeExecutor(
            VOCABULARY, BLOCK, verify=True, windows=windows, max_in_flight=in_flight - 1 + stages, on_step=self._begin,
            failed_slots=self._fail, max_model_len=self.length,
            make_store=list_store(remote, [(9, 9)] * BLOCK) if remote else None,
        )  # fmt: skip
        executor.allocate(CacheSize(blocks, host if keeps else 0))
        self.engine = Engine(
            executor,
            engine_options(
                max_num_seqs=slots, enable_chunked_prefill=chunked, enable_prefix_caching=caching,
                scheduling_policy=policy, max_num_partial_prefills=partial, max_long_partial_prefills=long,
                long_prefill_token_threshold=threshold if chunked else 0,
            ),
            EngineFacts(
                num_blocks=blocks, block_size=BLOCK, max_model_len=self.length, max_num_batched_tokens=budget,
                windows=tuple(windows), num_stages=stages, num_host_blocks=host if keeps else 0,
                eos_token_ids=frozenset(END),
            ),
            clock=lambda: float(self.begun),
            drafter=FakeDrafter(VOCABULARY, drafts) if drafts else None,
            connectors=[RemoteConnector(remote)] if remote else [],
        )  # fmt: skip
        self.requests: dict[int, GenerationRequest] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.live: set[int] = set()
        self.aborted: set[int] = set()
        self.failed: set[int] = set()
        self.begun_elsewhere: dict[tuple[int, int], list[int]] = {}
        self.stopped: set[tuple[int, int]] = set()

    @rule(
        length=st.integers(1, 30), start=st.integers(0, 2), n=st.integers(1, 4), max_tokens=st.integers(0, 20),
        priority=st.integers(-1, 1), seed=st.integers(0, 3), logprobs=st.booleans(), min_tokens=st.integers(0, 9),
        moved=st.none() | st.integers(0, 12),
    )  # fmt: skip
    def add(
        self, length: int, start: int, n: int, max_tokens: int, priority: int, seed: int, logprobs: bool,
        min_tokens: int, moved: int | None,
    ) -> None:  # fmt: skip
        key = len(self.requests)
        sampling = SamplingParameters(
            n=n, max_tokens=min(max_tokens, self.length - length), seed=seed, prompt_logprobs=0 if logprobs else None,
            logprobs=1 if logprobs else None, min_tokens=min_tokens, stop_token_ids=(STOP,),
        )  # fmt: skip
        prompt = [(start + index) % VOCABULARY for index in range(length)]
        request = GenerationRequest(f"r{key}", prompt, sampling, priority=priority)
        if moved is not None:
            whole = [self._wanted(request, choice) for choice in range(n)]
            if any(moved < len(tokens) for tokens in whole):
                progress = tuple(ChoiceProgress(tokens[:moved], moved >= len(tokens)) for tokens in whole)
                self.begun_elsewhere |= {(key, choice): tokens[:moved] for choice, tokens in enumerate(whole)}
                request = replace(request, progress=progress)
        self.requests[key] = request
        self.live.add(key)
        self.engine.add(key, request)

    def _wanted(self, request: GenerationRequest, choice: int) -> list[int]:
        """Returns all tokens that a choice gets when it runs alone and undisturbed."""
        sampling = request.sampling
        plan = sampling_plan(seed=sequence_seed(sampling.seed or 0, choice))
        tokens = expected_tokens(request.prompt_token_ids, sampling.max_tokens or 0, VOCABULARY, plan)
        ends = (count for count, token in enumerate(tokens, 1) if token in (*END, STOP) and count > sampling.min_tokens)
        return tokens[: next(ends, len(tokens))]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        self.engine.abort(key)
        self.aborted.add(key)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), choice=st.integers(0, 3), count=st.integers(0, 20))
    def stop(self, data: st.DataObject, choice: int, count: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        self.engine.stop(key, choice, count)
        self.stopped.add((key, choice))

    @precondition(lambda self: self.live)
    @rule(slot=st.integers(0, 5))
    def fault(self, slot: int) -> None:
        """Makes the next sequence that runs in this slot fail."""
        self.faults.add(slot)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        had_work, before = self.engine.load().busy, self._progress()
        for delta in self.engine.step():
            self.tokens.setdefault((delta.key, delta.choice_index), []).extend(delta.token_ids)
            if delta.prompt_logprobs:
                prompt = self.requests[delta.key].prompt_token_ids
                assert [entry.token_ids[0] for entry in delta.prompt_logprobs] == prompt[1:]
            if delta.logprobs is not None:
                assert [entry.token_ids[0] for entry in delta.logprobs] == delta.token_ids
            if delta.finish_reason is FinishReason.STOP and delta.token_ids:
                assert delta.stop_token_id == (STOP if delta.token_ids[-1] == STOP else None)
            if delta.is_final:
                assert delta.usage is not None
                if delta.finish_reason is FinishReason.ERROR:
                    assert delta.error is not None
                    assert delta.error.reason == "REQUEST_FAULT"
                    self.failed.add(delta.key)
                elif delta.finish_reason is not FinishReason.ABORT and not self._has_stopped(delta.key):
                    assert delta.usage.completion_tokens == self._num_output_tokens(delta.key)
                self.live.remove(delta.key)
        assert not had_work or self._progress() > before, "a step neither began nor ended"

    def _has_stopped(self, key: int) -> bool:
        return any(stopped == key for stopped, _ in self.stopped)

    def _num_output_tokens(self, key: int) -> int:
        return sum(
            len(tokens)
            for found in (self.tokens, self.begun_elsewhere)
            for (owner, _), tokens in found.items()
            if owner == key
        )

    def _begin(self, plan: StepPlan) -> None:
        self.begun += 1

    def _fail(self, plan: StepPlan) -> dict[int, str]:
        failed = {scheduled.slot: "NaN" for scheduled in plan.scheduled if scheduled.slot in self.faults}
        self.faults -= failed.keys()
        return failed

    def _progress(self) -> int:
        return self.begun + sum(self.engine.load().counters.model_execute_milliseconds.counts)

    @invariant()
    def nothing_leaks(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(20_000):
            if not self.engine.has_work:
                break
            self._step()
        assert not self.live, "a request starved"
        assert self.engine.load().used_kv_blocks == 0
        for (key, choice), tokens in self.tokens.items():
            wanted = self._wanted(self.requests[key], choice)[len(self.begun_elsewhere.get((key, choice), [])) :]
            cut_off = key in self.aborted | self.failed or (key, choice) in self.stopped
            assert tokens == (wanted[: len(tokens)] if cut_off else wanted)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
