"""The data types of tensors in GGUF files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorType:
    """A data type stored in blocks: `values` values of a row take `bytes` bytes."""

    name: str
    values: int
    bytes: int

    def row_bytes(self, values: int) -> int:
        """Size in bytes of a row with `values` values.

        Raises:
            ValueError: the row would end inside a block.
        """
        if values % self.values:
            raise ValueError(f"rows of {values} values, but {self.name} has blocks of {self.values}")
        return values // self.values * self.bytes


F32, F16, BF16 = TensorType("F32", 1, 4), TensorType("F16", 1, 2), TensorType("BF16", 1, 2)
PLAIN = (F32, F16, BF16)

# Keys are the type numbers in files.
TYPES = {0: F32, 1: F16, 30: BF16} | {
    number: TensorType(name, values, size)
    for number, name, values, size in (
        (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 40), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1), (25, "I16", 1, 2),
        (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56), (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18),
    )
}  # fmt: skip
# Names of the types that a model may use, see engine_svc.quantization.gguf_blocks.
READ = (
    *(each.name for each in PLAIN), "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "MXFP4",
)  # fmt: skip
