"""The report that the comparison of servers prints."""

from benchmarks.comparison import FIGURES, FIRST, LLAMA, MEMORY, OWN, SHARED, START, TOKENS, Measure, report


def measures(server: str, tokens: float, first: float, load: str = "8") -> list[Measure]:
    values = dict.fromkeys(FIGURES, 1.0) | {TOKENS: tokens, FIRST: first}
    found = [Measure("tiny", load, name, server, value) for name, value in values.items()]
    return [*found, Measure("tiny", "", START, server, 2.0), Measure("tiny", "", MEMORY, server, 300.0)]


def row(table: str, server: str) -> list[str]:
    line = next(line for line in table.splitlines() if f"| {server} |" in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_each_peer_has_its_own_goals_and_a_missed_one_is_named() -> None:
    peers = measures("vLLM", 100, 50) + measures("llama.cpp BF16", 160, 120) + measures("llama.cpp Q8_0", 180, 120)
    table = report(peers + measures("Quire amx bfloat16", 170, 25) + measures("Quire amx int8", 270, 25))
    assert row(table, "Quire amx bfloat16")[-4:] == ["1.70", "0.50", "1.06 (goal ≥ 1.3)", "0.21"]
    assert row(table, "Quire amx int8")[-4:] == ["2.70", "0.50", "1.50", "0.21"]
    assert row(table, "vLLM")[-4:] == ["", "", "", ""]


def test_vllm_at_the_same_level_of_instructions_is_the_peer() -> None:
    peers = measures("vLLM", 100, 50) + measures("vLLM avx2", 50, 100)
    table = report(peers + measures("Quire amx int8", 100, 25) + measures("Quire avx2 bfloat16", 100, 50))
    assert row(table, "Quire amx int8")[-2:] == ["1.00 (goal ≥ 1.5)", "0.50"]
    assert row(table, "Quire avx2 bfloat16")[-2:] == ["2.00", "0.50"]
    assert row(table, "vLLM avx2")[-2:] == ["", ""]


def test_one_stream_is_to_equal_llama_cpp() -> None:
    table = report(measures("llama.cpp BF16", 10, 9, "1") + measures("Quire amx bfloat16", 10, 9, "1"))
    assert row(table, "Quire amx bfloat16")[-2:] == ["1.00", "1.00 (goal ≤ 0.5)"]


def test_loads_stand_in_order_and_rounds_give_medians() -> None:
    loads = ("32", "8", SHARED, "1")
    rounds = [found for tokens in (1, 2, 9) for load in loads for found in measures("vLLM", tokens, 1, load)]
    lines = report(rounds).splitlines()[2:6]
    assert [line.split(" | ")[1] for line in lines] == ["1", "8", "32", SHARED]
    assert all(line.split(" | ")[3] == "2.0" for line in lines)


def test_forms_of_weights_have_goals_of_their_own() -> None:
    """Each form is compared with llama.cpp's file of the same number of bits, and with Quire's own 16-bit run."""
    goals = {LLAMA: {"1": {TOKENS: 1.0}, "": {TOKENS: 1.5}}, OWN: {"": {}}}
    peers = measures("llama.cpp Q8_0", 10, 10) + measures("llama.cpp Q4_K_M", 20, 10) + measures(OWN, 8, 10)
    forms = ("Quire Q8_0", "Quire int8", "Quire int4", "Quire Q4_K_M")
    table = report(peers + [found for form in forms for found in measures(form, 16, 20)], goals)
    assert row(table, "Quire Q8_0")[-4:] == ["1.60", "2.00", "2.00", "2.00"]
    assert row(table, "Quire int8")[-4:] == ["1.60", "2.00", "2.00", "2.00"]
    assert row(table, "Quire Q4_K_M")[-4:] == ["0.80 (goal ≥ 1.5)", "2.00", "2.00", "2.00"]
    assert row(table, "Quire int4")[-4:] == ["0.80 (goal ≥ 1.5)", "2.00", "2.00", "2.00"]
    assert row(table, OWN)[-4:] == ["", "", "", ""]
