"""Adapters are loaded, unloaded and replaced under random requests: nothing leaks; each request keeps its revision."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_svc.adapters.adapter import Adapter
from engine_svc.core.engine import MAX_CONSECUTIVE_FAILURES, Engine, EngineFacts
from engine_svc.plan import CacheSize, StepPlan
from engine_svc.requests.admission import sequence_seed
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.fake_adapters import FakeAdapters
from tests.support.fake_drafter import FakeDrafter
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan

VOCABULARY = 50
BLOCK = 4
LENGTH = 40
NUM_ADAPTERS = 64


@dataclass
class Case:
    """A request and its results so far."""

    request: GenerationRequest
    tokens: dict[int, list[int]] = field(default_factory=dict)
    outcome: FinishReason | None = None
    has_failed: bool = False


class AdapterMachine(RuleBasedStateMachine):
    """Drives an engine whose executor starts every context with the adapter in the sequence's slot."""

    @initialize(
        slots=st.integers(1, 4), more=st.integers(0, 4), running=st.integers(1, 16), spare=st.integers(0, 30),
        budget=st.integers(8, 64), caching=st.booleans(), policy=st.sampled_from(["fcfs", "priority"]),
        in_flight=st.integers(1, 2), steps=st.integers(0, 5), drafts=st.integers(0, 3), host=st.integers(0, 8),
    )  # fmt: skip
    def start(
        self, slots: int, more: int, running: int, spare: int, budget: int, caching: bool, policy: str,
        in_flight: int, steps: int, drafts: int, host: int,
    ) -> None:  # fmt: skip
        self.broken: set[str] = set()
        self.crash = False
        executor = FakeExecutor(
            VOCABULARY, BLOCK, verify=True, max_in_flight=in_flight, max_model_len=LENGTH, on_step=self._begin,
            adapters=FakeAdapters(slots, slots + more, lambda folder: len(folder) * steps % 6, self._error),
        )  # fmt: skip
        blocks = LENGTH // BLOCK + spare
        host = host if caching else 0
        executor.allocate(CacheSize(blocks, host))
        self.engine = Engine(
            executor,
            engine_options(
                max_num_seqs=running, enable_prefix_caching=caching, scheduling_policy=policy, enable_lora=True,
                max_loras=slots, max_cpu_loras=slots + more,
            ),
            EngineFacts(
                num_blocks=blocks, block_size=BLOCK, max_model_len=LENGTH, max_num_batched_tokens=budget,
                windows=(None,), num_host_blocks=host,
            ),
            drafter=FakeDrafter(VOCABULARY, drafts) if drafts else None,
        )  # fmt: skip
        self.served = {index: self._adapter(index, 0) for index in range(NUM_ADAPTERS)}
        self.revisions = dict.fromkeys(range(NUM_ADAPTERS), 0)
        self.retired: dict[int, bool] = {}  # key → whether it has been dropped
        self.cases: dict[int, Case] = {}
        self.stopped: set[tuple[int, int]] = set()

    def _adapter(self, index: int, revision: int) -> Adapter:
        name = f"a{index}@{revision}"
        return Adapter(f"a{index}", name, name, 4, "", NUM_ADAPTERS * revision + index + 1, name)

    @rule(
        adapter=st.none() | st.integers(0, NUM_ADAPTERS - 1), again=st.booleans(), length=st.integers(1, 20),
        n=st.integers(1, 3), max_tokens=st.integers(0, 12), priority=st.integers(-1, 1), moved=st.integers(0, 3),
    )  # fmt: skip
    def add(
        self, adapter: int | None, again: bool, length: int, n: int, max_tokens: int, priority: int, moved: int
    ) -> None:
        index = adapter if adapter is None or not again else adapter % 3  # some are requested often
        chosen = self.served.get(index) if index is not None else None
        key = len(self.cases)
        sampling = SamplingParameters(n=n, max_tokens=max_tokens, seed=key)
        request = GenerationRequest(
            f"r{key}", list(range(length)), sampling, chosen.name if chosen else "", chosen, priority=priority
        )
        if 0 < moved < max_tokens:
            progress = tuple(ChoiceProgress(self._wanted(request, choice)[:moved]) for choice in range(n))
            request = replace(request, progress=progress)
        self.cases[key] = Case(request)
        self.engine.add(key, request)

    def _wanted(self, request: GenerationRequest, choice: int) -> list[int]:
        """Returns all tokens that a choice gets when it runs alone with its adapter."""
        plan = sampling_plan(seed=sequence_seed(request.sampling.seed or 0, choice))
        folder = request.adapter.folder if request.adapter else ""
        count = request.sampling.max_tokens or 0
        return expected_tokens(request.prompt_token_ids, count, VOCABULARY, plan, folder)

    @rule(data=st.data(), reload=st.booleans())
    @precondition(lambda self: self.served)
    def replace_or_unload(self, data: st.DataObject, reload: bool) -> None:
        used = {case.request.adapter.name for case in self._living() if case.request.adapter}
        names = [index for index in self.served if f"a{index}" in used] or list(self.served)
        index = data.draw(st.sampled_from(names))
        old = self.served.pop(index)
        self.retired[old.key] = False
        if reload:
            self.revisions[index] += 1
            self.served[index] = self._adapter(index, self.revisions[index])

        def gone() -> None:
            assert not self.retired[old.key], "it goes twice"
            self.retired[old.key] = True

        self.engine.retire_adapter(old, gone)

    @rule(data=st.data())
    @precondition(lambda self: self._living())
    def abort(self, data: st.DataObject) -> None:
        keys = [key for key, case in self.cases.items() if case.outcome is None]
        self.engine.abort(data.draw(st.sampled_from(keys)))

    @rule(data=st.data(), choice=st.integers(0, 2), count=st.integers(0, 12))
    @precondition(lambda self: self._living())
    def stop(self, data: st.DataObject, choice: int, count: int) -> None:
        key = data.draw(st.sampled_from([key for key, case in self.cases.items() if case.outcome is None]))
        self.engine.stop(key, choice, count)
        self.stopped.add((key, choice))

    @rule(data=st.data(), mend=st.booleans())
    @precondition(lambda self: self.served)
    def break_one(self, data: st.DataObject, mend: bool) -> None:
        if mend:
            self.broken.clear()
        else:
            self.broken.add(data.draw(st.sampled_from(list(self.served.values()))).folder)

    # Three failures without a successful step in between end the engine.
    @precondition(lambda self: not self.crash and self.engine._failures < MAX_CONSECUTIVE_FAILURES - 1)
    @rule()
    def break_step(self) -> None:
        """Makes the next step raise, whatever is in it."""
        self.crash = True

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        if not self.engine.has_work:
            return
        for delta in self.engine.step():
            case = self.cases[delta.key]
            assert case.outcome is None, "news of a request that has ended"
            case.tokens.setdefault(delta.choice_index, []).extend(delta.token_ids)
            if delta.is_final:
                case.outcome = delta.finish_reason
                if delta.error is not None:
                    case.has_failed = True
                    assert delta.error.reason in {"REQUEST_FAULT", "ENGINE_FAULT"}, delta.error

    def _begin(self, plan: StepPlan) -> None:
        if self.crash:
            self.crash = False
            raise RuntimeError("a step fails")

    def _error(self, folder: str) -> str:
        return "it is damaged" if folder in self.broken else ""

    def _living(self) -> list[Case]:
        return [case for case in self.cases.values() if case.outcome is None]

    @invariant()
    def nothing_leaks(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check()
        having = {case.request.adapter.key for case in self._living() if case.request.adapter}
        for key, gone in self.retired.items():
            assert gone or key in having, "an adapter is kept that nobody has"

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(20_000):
            if not self.engine.has_work:
                break
            self._step()
        assert not self._living(), "a request starved"
        assert all(self.retired.values()), "an adapter that was unloaded is not gone"
        assert self.engine.load().used_kv_blocks == 0
        for key, case in self.cases.items():
            for choice in range(case.request.sampling.n):
                wanted, tokens = self._wanted(case.request, choice), case.tokens.get(choice, [])
                if case.request.progress:
                    wanted = wanted[len(case.request.progress[choice].token_ids) :]
                is_cut = case.has_failed or case.outcome is FinishReason.ABORT or (key, choice) in self.stopped
                assert tokens == (wanted[: len(tokens)] if is_cut else wanted)


TestAdapterMachine = AdapterMachine.TestCase
TestAdapterMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
