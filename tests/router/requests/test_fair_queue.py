"""The order in which waiting requests are admitted, and which are evicted when too many wait."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.requests.fair_queue import Entry, FairQueue, _Tenant


def let_in(queue: FairQueue[str], entries: dict[str, Entry[str]], count: int) -> list[str]:
    found = []
    for _ in range(count):
        item = queue.peek()[0].item
        queue.let_in(entries[item])
        found.append(item)
    return found


def fill(queue: FairQueue[str], *items: tuple[str, int, int]) -> dict[str, Entry[str]]:
    """Pushes (name, priority, tokens), where the letters of a name are the tenant; returns entries by name."""
    return {name: queue.push(name, name.rstrip("0123456789"), priority, tokens)[0] for name, priority, tokens in items}


def slow_peek(queue: FairQueue[int]) -> list[int]:
    """The next items by definition: lost requests first, then those of the tenant whose turn it is."""
    if queue._front:
        return [queue._front[0].item]

    def waiting(tenant: _Tenant[int]) -> list[tuple[int, int, Entry[int]]]:
        return sorted((held for held in tenant.heap if not held[2].gone), key=lambda held: held[:2])

    whose = waiting(min(queue._tenants.values(), key=lambda each: (waiting(each)[0][0], each.served)))
    return [entry.item for priority, _, entry in whose if priority == whose[0][0]]


def test_tenants_take_turns_whoever_came_with_more() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = fill(queue, *((f"a{n}", 0, 100) for n in range(50)), ("b1", 0, 100), ("b2", 0, 100))
    assert let_in(queue, entries, 5) == ["a0", "b1", "a1", "b2", "a2"]


def test_turns_are_counted_in_tokens() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = fill(queue, *((f"long{n}", 0, 1000) for n in range(4)), *((f"short{n}", 0, 100) for n in range(40)))
    first = let_in(queue, entries, 22)
    assert sum(name.startswith("long") for name in first) == 2


def test_turns_are_as_frequent_as_weights_say() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = {}
    for tenant, weight in (("heavy", 3.0), ("light", 1.0)):
        for number in range(40):
            name = f"{tenant}{number}"
            entries[name], _ = queue.push(name, tenant, 0, 100, weight)
    first = let_in(queue, entries, 40)
    assert sum(name.startswith("heavy") for name in first) == 30


def test_of_a_full_queue_those_go_that_have_most_for_their_weight() -> None:
    queue: FairQueue[str] = FairQueue(6, 10**6)
    for tenant, weight, count in (("heavy", 3.0, 4), ("light", 1.0, 2)):
        for number in range(count):
            queue.push(f"{tenant}{number}", tenant, 0, 100, weight)
    assert queue.push("new", "new", 0, 100)[1] == ["light1"]


def test_who_comes_late_does_not_catch_up_on_what_others_had() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = fill(queue, *((f"a{n}", 0, 100) for n in range(20)))
    let_in(queue, entries, 10)
    entries |= fill(queue, *((f"b{n}", 0, 100) for n in range(20)))
    assert {name[0] for name in let_in(queue, entries, 2)} == {"a", "b"}
    assert sum(name[0] == "b" for name in let_in(queue, entries, 10)) in (5, 6)


def test_urgent_before_others_and_the_lost_before_all() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = fill(queue, ("a1", 0, 1), ("a2", -5, 1), ("b1", -1, 1), ("b2", 7, 1))
    entries["lost"] = queue.push_front("lost", "b")
    assert queue.waiting_by_tenant() == {"a": 2, "b": 3}
    assert let_in(queue, entries, 5) == ["lost", "a2", "b1", "a1", "b2"]


def test_of_a_full_queue_the_newest_of_the_greediest_goes() -> None:
    queue: FairQueue[str] = FairQueue(4, 10**6)
    fill(queue, *((f"a{n}", 0, 100) for n in range(4)))
    entry, victims = queue.push("a4", "a", 0, 100)
    assert victims == ["a4"]
    entry, victims = queue.push("b1", "b", 0, 100)
    assert (victims, entry.gone) == (["a3"], False)
    assert queue.waiting_by_tenant() == {"a": 3, "b": 1}


def test_tokens_are_bounded_too_and_a_single_long_one_may_wait() -> None:
    queue: FairQueue[str] = FairQueue(100, 1000)
    assert queue.push("a1", "a", 0, 5000)[1] == []
    assert queue.push("b1", "b", 0, 10)[1] == ["a1"]


def test_one_that_needs_much_room_displaces_as_many_as_it_takes_of_those_that_have_more() -> None:
    queue: FairQueue[str] = FairQueue(100, 1000)
    fill(queue, *((f"a{n}", 0, 100) for n in range(6)), *((f"b{n}", 0, 100) for n in range(4)))
    assert queue.push("c1", "c", 0, 250)[1] == ["a5", "a4", "a3"]
    assert queue.tokens == 950
    assert queue.push("d1", "d", 0, 250)[1] == ["b3", "a2"]
    assert (queue.tokens, queue.waiting_by_tenant()) == (1000, {"a": 2, "b": 3, "c": 1, "d": 1})
    assert queue.push("e1", "e", 0, 250)[1] == ["e1"]  # evicting only tenants with more does not make enough room
    assert (queue.tokens, len(queue)) == (1000, 7)


def test_however_large_those_that_come_are_tokens_stay_bounded() -> None:
    queue: FairQueue[str] = FairQueue(10_000, 1_000_000)
    fill(queue, *((f"a{n}", 0, 1000) for n in range(1000)))
    for number in range(50):
        queue.push(f"t{number}", f"t{number}", 0, 900_000)
        assert queue.tokens <= 1_000_000


def test_a_tenant_whose_urgent_request_has_gone_is_not_urgent_any_more() -> None:
    """Holds also when its heap is rebuilt at that moment because many entries were removed before."""
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = fill(queue, ("a0", 0, 1), *((f"a{n}", 5, 1) for n in range(1, 41)), ("b1", 3, 1))
    for number in (*range(13, 41), 0):
        queue.remove(entries[f"a{number}"])
        assert queue.peek()[0].item == ("a0" if number else "b1")


def test_a_tenant_that_is_let_in_out_of_turn_has_its_next_turn_later() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = fill(queue, ("a1", 0, 10), ("a2", 0, 500), ("b1", 0, 10))
    queue.let_in(entries["a2"])
    assert queue.peek()[0].item == "b1"


def test_a_less_urgent_request_between_two_hides_none() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    fill(queue, ("a0", 0, 1), ("a1", 1, 1), ("a2", 0, 1))
    assert [entry.item for entry in queue.peek(3)] == ["a0", "a2"]


def test_none_goes_before_one_that_was_passed_over_often_enough() -> None:
    queue: FairQueue[str] = FairQueue(100, 10**6)
    entries = fill(queue, *((f"a{n}", 0, 100) for n in range(5)), ("a5", 1, 100))
    assert [entry.item for entry in queue.peek(9)] == ["a0", "a1", "a2", "a3", "a4"]
    entries["a1"].passed_over = 16
    assert [entry.item for entry in queue.peek(9)] == ["a0", "a1"]
    entries["a0"].passed_over = 16
    assert [entry.item for entry in queue.peek(9)] == ["a0"]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["push", "front", "let in", "remove"]), st.integers(0, 3), st.integers(0, 50)),
        max_size=200,
    )
)
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost_or_let_in_twice(steps: list[tuple[str, int, int]]) -> None:
    queue: FairQueue[int] = FairQueue(20, 500)
    entries: dict[int, Entry[int]] = {}
    tokens = dict[int, int]()
    for number, (action, tenant, amount) in enumerate(steps):
        if action == "push":
            entry, victims = queue.push(number, f"t{tenant}", amount % 3, amount)
            if victims != [number]:
                entries[number], tokens[number] = entry, amount
                for victim in victims:
                    del entries[victim]
                assert queue.tokens <= 500
        elif action == "front":
            entries[number], tokens[number] = queue.push_front(number, "lost"), 0
        elif entries:
            item = queue.peek()[0].item if action == "let in" else list(entries)[amount % len(entries)]
            entry = entries.pop(item)
            queue.let_in(entry) if action == "let in" else queue.remove(entry)
        assert len(queue) == len(entries)
        assert queue.tokens == sum(tokens[item] for item in entries)
        assert sum(queue.waiting_by_tenant().values()) == len(entries) <= 20 + len(steps)
        assert len(queue._turns) <= 2 * len(queue._tenants) + 17
        if entries:
            assert [entry.item for entry in queue.peek(3)] == slow_peek(queue)[:3]
    while entries:
        queue.let_in(entries.pop(queue.peek()[0].item))
    assert (len(queue), queue.tokens, queue.waiting_by_tenant()) == (0, 0, {})
