"""Processor names identify their generation."""

from quire.processor_name import processor_name


def test_a_processor_is_named_with_its_generation() -> None:
    intel = ["processor\t: 0", "cpu family\t: 6", "model\t\t: 207", "model name\t: Intel(R) Xeon(R) Processor", ""]
    assert processor_name(intel) == "Intel Xeon Processor (cpu family 6, model 207)"


def test_arm_names_parts_and_no_model() -> None:
    assert processor_name(["CPU implementer\t: 0x41", "CPU part\t: 0xd40"]) == "ARM implementer 0x41 part 0xd40"
