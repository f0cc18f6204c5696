"""The line above a benchmark's tables."""

from benchmarks.machine import chosen_level, heading, processor


def test_processor_is_named_with_its_generation() -> None:
    intel = ["processor\t: 0", "cpu family\t: 6", "model\t\t: 207", "model name\t: Intel(R) Xeon(R) Processor", ""]
    assert processor(intel) == "Intel Xeon Processor (cpu family 6, model 207)"


def test_arm_names_parts_and_no_model() -> None:
    assert processor(["CPU implementer\t: 0x41", "CPU part\t: 0xd40"]) == "ARM implementer 0x41 part 0xd40"


def test_heading_names_the_level_of_the_kernels() -> None:
    assert f"CPU kernels {chosen_level('auto')};" in heading()
    assert chosen_level("auto") != "auto"
    assert chosen_level("avx2") == "avx2"
