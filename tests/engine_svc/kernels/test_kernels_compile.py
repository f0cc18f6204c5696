"""The kernels compile for GPUs that this machine lacks: the compiler may reject what the interpreter accepts.

Compiled kernels stay in Triton's own cache, as on a machine with a GPU. Its keys are the source, the functions that
this calls, the options and the compiler, so a kernel is compiled again when any of them changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PARTS = 4
IMPORTS = """
import os
import subprocess
import sys
import tempfile
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import target_info
from engine_svc.kernels import activation, cache_write, coded, experts, int8, low_rank, matrix, norm, rotary, routing
from engine_svc.kernels import chunked_delta, chunked_scan, expanded_prefill
from engine_svc.kernels import convolution, paged_decode, paged_prefill, recurrence, sampling, single_row
from engine_svc.kernels import single_row_coded, single_row_experts, step_inputs, tiles
"""
CODE = """
def stack_of(compiled):  # bytes for each thread, of what its registers do not hold
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(printed.split("STACK:")[1].split()[0])

element, cached = sys.argv[1:3]
capability, part, parts_of_all = map(int, sys.argv[3:6])

def mine(items):  # all parts together compile all of them; what is not divided is in Triton's cache after the first
    return list(items)[part::parts_of_all]

def current_target():  # without a GPU there is none, and kernels would be as for the oldest
    return GPUTarget("cuda", capability, 32)

current_target.__triton_builtin__ = True
target_info.current_target = current_target
dtype = torch.float32 if element == "fp32" else torch.bfloat16
shapes = [(8, 80, 32, 0, 8), (1, 64, 16, 4096, 8), (2, 256, 16, 1024, 4), (8, 512, 16, 0, 1), (16, 576, 16, 0, 1)]
if (element, cached) != ("bf16", "bf16"):  # what the others add: their types, and the largest tiles
    shapes = shapes[-1:] if element == "fp32" else shapes[-3:-1]
elif capability >= 90:
    shapes.append((4, 128, 64, 0, 8))  # whose tiles are copied
for group, dim, block_size, window, kv_heads in shapes:
    generation = divmod(capability, 10)
    tile = tiles.prefill_tiles(dim, dtype, generation, are_copied=dim == 128)
    for_both = tiles.prefill_tiles(dim, dtype, generation, are_copied=dim == 128, for_both=True)
    padded, (main, rest) = triton.next_power_of_2(dim), tiles.column_tiles(dim)
    common = {"WINDOW": window, "DIM": dim, "MAIN": main, "REST": rest, "SOFTCAP": window > 0, "SINKS": window > 0,
              "CHUNKED": window == 1024, "LSE": dim > 80, "CONTEXT_PARTS": 2 if dim > 80 else 1, "ALIBI": dim < 128}
    if dim == 128:
        common["CONTEXT_PARTS"] = 1
    paged = {"GROUP": group, "KV_HEADS": kv_heads, "BLOCK_SIZE": block_size, "PLANES": 1 if dim == 576 else 2,
             "SHARING": 2 if dim == 512 else 1}
    parts = {"PART_KEYS": paged_decode.PART}
    kernels = [
        *((paged_prefill._prefill_kernel, common | paged | {"TILE_M": tile.rows, "TILE_N": tile.keys,
                                          "PART_KEYS": part, "BIDIRECTIONAL": dim == 64}, tile)
          for part in {0, paged_decode.PART if dim == 80 else 0}),
        *((paged_decode._decode_kernel,
           common | paged | parts | {"ROWS": each.rows, "TILE_N": each.keys, "BIDIRECTIONAL": dim == 64}, each)
          for each in {tiles.decode_tiles(rows, tile, dim, generation, are_copied=dim == 128)
                       for rows in (group, 8 * group)} | {for_both}),
        *((paged_decode._combine_kernel,
           common | parts | {"HEADS": 8 * group, "DIM_PADDED": padded, "TOGETHER": together},
           tiles.Tiles(1, 1, paged_decode.combine_warps(padded)))
          for together in (1, paged_decode.parts_together(padded))),
        (cache_write._write_kernel,
         {"ROW": 8 * dim, "ROW_PADDED": triton.next_power_of_2(8 * dim), "MOST": 448.0 if cached != element else 0.0,
          "BLOCK_SIZE": block_size, "SHARING": paged["SHARING"]}),
        (rotary._rotate_kernel,
         {"NUM_QUERY": 8 * group, "NUM_KEY": 8, "CACHED": True, "MOST": 448.0 if cached != element else 0.0,
          "DIM": dim, "DIM_PADDED": padded, "HALF": dim // 2, "WITH_NORMS": True, "INTERLEAVED": False, "ROWS": 4,
          "BLOCK_SIZE": block_size, "SHARING": paged["SHARING"]}),
    ]
    types = {
        "query_ptr": element, "key_ptr": element, "value_ptr": element, "cache_ptr": cached, "output_ptr": element,
        "key_cache_ptr": cached, "value_cache_ptr": cached, "sinks_ptr": "fp32", "slopes_ptr": "fp32",
        "partial_ptr": "fp32",
        "best_ptr": "fp32", "total_ptr": "fp32", "slot_mapping_ptr": "i64", "heads_ptr": element, "table_ptr": element,
        "query_norm_ptr": element, "key_norm_ptr": element,
    }
    for kernel, constants, *given in mine(kernels):
        if given and (dim != 128 or block_size % given[0].keys):
            constants = constants | {"descriptor": None}
        signature = {
            name: "constexpr" if name in constants else "*" + types.get(name, "i32") if name.endswith("_ptr")
            else f"tensordesc<{element}[{given[0].keys}, {dim}]>" if name == "descriptor"
            else "fp32" if name in ("scale", "softcap", "epsilon") else "i64" if name == "value_offset" else "i32"
            for name in kernel.arg_names
        }
        known = {name: value for name, value in constants.items() if name in kernel.arg_names}
        # As tensors lie: what is not aligned is not read ahead, and takes less shared memory.
        aligned = {
            (place,): [["tt.divisibility", 16]] for place, name in enumerate(kernel.arg_names)
            if name in ("value_offset", "query_stride", "output_stride", "key_stride", "value_stride")
            or (name.endswith("_ptr") and name not in ("sequences_ptr", "tile_sequence_ptr", "tile_start_ptr"))
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=aligned)
        target = GPUTarget("cuda", capability, 32)
        options = {"num_warps": 4}
        if given:
            options = {"num_warps": given[0].warps, "num_stages": given[0].stages}
        compiled = triton.compile(source, target=target, options=options)
        shared, stack = compiled.metadata.shared, stack_of(compiled)
        there_is = 227 if capability in (90, 100) else 99  # KiB on each GPU of a generation since Ampere
        assert shared <= there_is * 1024, (kernel.__name__, given, shared)
        assert stack <= 512, (kernel.__name__, given, stack)
        assert ("griddepcontrol.wait" in compiled.asm["ptx"]) == (capability >= 90)
        print(kernel.__name__, element, cached, group, dim, shared, stack)

tile = tiles.expansion_tiles(dtype, divmod(capability, 10))
expanded = {"HEADS": 16, "PLAIN": 128, "PLAIN_PADDED": 128, "ROTATED": 64, "ROTATED_PADDED": 64, "VALUE": 128,
            "VALUE_PADDED": 128, "TILE_M": tile.rows, "TILE_N": tile.keys}
signature = {
    name: "constexpr" if name in expanded else "*fp32" if name in ("result_ptr", "best_ptr", "total_ptr")
    else "*i32" if name in ("tile_ptr", "query_start_ptr", "seq_lens_ptr") else "*" + element
    if name.endswith("_ptr") else "fp32" if name == "scale" else "i32"
    for name in expanded_prefill._expanded_kernel.arg_names
}
aligned = {
    (place,): [["tt.divisibility", 16]] for place, name in enumerate(signature)
    if name.endswith(("_ptr", "_stride"))
}
if element == cached:
    compiled = triton.compile(
        ASTSource(fn=expanded_prefill._expanded_kernel, signature=signature, constexprs=expanded, attrs=aligned),
        target=GPUTarget("cuda", capability, 32), options={"num_warps": tile.warps, "num_stages": tile.stages},
    )
    shared, stack = compiled.metadata.shared, stack_of(compiled)
    assert shared <= (227 if capability in (90, 100) else 99) * 1024 and stack <= 512, (tile, shared, stack)
    print("_expanded_kernel", element, shared, stack)
tile = experts.product_tiles(experts.MOST_ROWS, dtype, roomy=True)
if element == cached == "bf16" and capability in (90, 100):  # tiles that the GPU itself copies
    copied = {"BIAS": False, "EVEN": True, "TILE_M": experts.MOST_ROWS, "TILE_N": tile.outputs, "TILE_K": tile.inputs}
    signature = {
        name: "constexpr" if name in copied else f"tensordesc<bf16[{tile.outputs}, {tile.inputs}]>"
        if name == "descriptor" else "*i32" if name in ("row_ptr", "expert_ptr")
        else "*bf16" if name.endswith("_ptr") else "i32"
        for name in experts._grouped_kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]] for place, name in enumerate(signature)
        if name.endswith("_ptr") or name in ("outputs", "size")
    }
    compiled = triton.compile(
        ASTSource(fn=experts._grouped_kernel, signature=signature, constexprs=copied, attrs=aligned),
        target=GPUTarget("cuda", capability, 32), options={"num_warps": tile.warps, "num_stages": tile.stages},
    )
    shared, stack = compiled.metadata.shared, stack_of(compiled)
    assert shared <= 227 * 1024 and stack <= 512, (tile, shared, stack)

products = [
    (matrix._product_kernel,
     {"BIAS": bias, "TILE_M": matrix.TILE_M, "TILE_N": matrix.TILE_N, "TILE_K": matrix.inner_tile(dtype), "BAND": 8},
     {"num_warps": 4, "num_stages": 3})
    for bias in (False, True)
] + [
    (experts._grouped_kernel,
     {"BIAS": bias, "EVEN": not bias, "TILE_M": rows, "TILE_N": tile.outputs, "TILE_K": tile.inputs,
      "descriptor": None},
     {"num_warps": tile.warps, "num_stages": tile.stages})
    for bias, rows in ((False, experts.TILE_M), (True, experts.MANY_ROWS), (False, experts.MOST_ROWS))
    for tile in [experts.product_tiles(rows, dtype)] if rows < experts.MOST_ROWS or dtype != torch.float32
] + [
    (experts._sort_kernel,
     {"EXPERTS": count, "BINS": bins, "TILE_M": experts.TILE_M, "CHUNK": chunk}, {"num_warps": warps})
    for count, bins, chunk, warps in ((4, 128, experts._LARGE_CHUNK, 8), (256, 512, experts._CHUNK, 4))
] + [(experts._add_kernel, {"CHOSEN": 4, "COLUMNS": 1024}, {"num_warps": 4})] + [
    (activation._gated_kernel, {"SIZE": 2880, "COLUMNS": 1024, "KIND": kind}, {"num_warps": 4}) for kind in range(6)
] + [
    (activation._activate_kernel, {"COLUMNS": 1024, "KIND": kind}, {"num_warps": 4}) for kind in (0, 1, 3, 4, 5)
] + [(activation._xielu_kernel, {"COLUMNS": 1024}, {"num_warps": 4})] + [
    (rotary._rotate_kernel,
     {"NUM_QUERY": 4, "NUM_KEY": 2, "CACHED": False, "MOST": 0.0, "DIM": 96, "DIM_PADDED": 128, "HALF": half,
      "WITH_NORMS": norms, "INTERLEAVED": interleaved, "ROWS": 8, "key_cache_ptr": None, "value_cache_ptr": None,
      "slot_mapping_ptr": None} | ({} if norms else {"query_norm_ptr": None, "key_norm_ptr": None}),
     {"num_warps": 4})
    for half, interleaved, norms in ((48, False, True), (24, True, False), (0, False, True))
] + [
    (rotary._rotate_pairs_kernel, {"HALF": 32, "HALF_PADDED": 32, "ROWS": 8}, {"num_warps": 1}),
    (norm._norm_kernel, {"SIZE": 2880, "SIZE_PADDED": 4096, "WITH_RESIDUAL": True}, {"num_warps": 4}),
] + [
    (single_row._single_row_kernel,
     {"SIZE": size, "SIZE_PADDED": triton.next_power_of_2(size), "BIAS": True, "INPUT": before, "RESIDUAL": before == 1,
      "ACTIVATION": 0, "TOTAL": before == 0, "ADDED": before == 0, "TILE_N": tile.outputs, "TILE_K": tile.inputs},
     {"num_warps": tile.warps})
    for size, before in ((1024, 0), (2880, 1), (14336, 2))
    for tile in [single_row.single_row_tiles(size)]
] + [
    (kernel,
     {"SIZE": size, "BIAS": size == 2880, "TILE_N": tile.outputs, "TILE_K": tile.inputs} | more,
     {"num_warps": tile.warps})
    for kernel, size, more in ((single_row_experts._gate_up_kernel, 2048, {}),
                               (single_row_experts._down_kernel, 768, {"CHOSEN": 8, "KIND": 0}),
                               (single_row_experts._down_kernel, 2880, {"CHOSEN": 4, "KIND": 2}))
    for tile in [single_row_experts.DOWN]
] + [
    (int8._quantize_kernel, {"SIZE": size, "SIZE_PADDED": triton.next_power_of_2(size)}, {"num_warps": 8})
    for size in (96, 14336)
] + [
    (int8._multiply_kernel,
     {"BIAS": bias, "BAND": 8, "TILE_M": tile.rows, "TILE_N": tile.outputs, "TILE_K": tile.inputs},
     {"num_warps": tile.warps, "num_stages": tile.stages})
    for rows, bias in ((1, True), (500, False))
    for tile in [int8.int8_tiles(rows)]
]
for kernel, constants, options in mine(products) if element == cached else ():
    if element == "fp32" and kernel is matrix._product_kernel and not constants["BIAS"]:  # less of the same
        continue
    signature = {
        name: "constexpr" if name in constants
        else "*fp32" if kernel is experts._add_kernel and name == "weight_ptr"
        else "*fp32" if name.endswith(("scale_ptr", "share_ptr", "numbers_ptr"))
        else "*i64" if name == "id_ptr"
        else "*i8" if kernel.__module__ == int8.__name__ and name in ("code_ptr", "weight_ptr")
        else "fp32" if name in ("slope", "limit", "epsilon") else "*i32" if name in ("row_ptr", "expert_ptr")
        else "*" + element if name.endswith("_ptr") else "i32"
        for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.metadata.shared <= 96 * 1024, (kernel.__name__, compiled.metadata.shared)
    print(kernel.__name__, element, compiled.metadata.shared)

kinds = [(0, 8, 4, 128), (0, 128, 8, 16), (1, 0, 8, 128), (2, 0, 8, 64), (3, 0, 4, 32), (4, 0, 4, 64)]
if cached == "u8":  # where e4m3 has no type, which other kinds do not use
    kinds = kinds[:3]
for kind, zero, bits, group in mine(kinds) if element == "bf16" and cached in ("bf16", "u8") else ():
    for given in (False, True):
        is_ordered = given and kind == 0  # as in the only format that has an order, GPTQ
        form = {"KIND": kind, "ZERO": zero, "OFFSET": given, "ORDER": is_ordered}
        without = dict.fromkeys(() if given else ("offset_ptr", "bias_ptr", "row_ptr", "expert_ptr"))
        without |= {} if is_ordered else {"order_ptr": None}
        without |= {} if kind == 4 else {"table_ptr": None}
        of_tile, (wide_n, wide_k) = coded.coded_tiles(is_ordered), coded._WIDE_TILE
        alone = single_row_coded.coded_row_tiles(4096, bits, kind)
        in_tiles = form | {"NIBBLES": bits == 4, "GROUP": group}
        words = {"WORDS_IN_GROUP": group * bits // 32 if given else 0, "SIZE": 4096, "SIZE_PADDED": 4096,
                 "ROW_WORDS": 128 * bits, "BITS": bits, "INT8": (kind, bits, given) == (0, 8, False)}
        row = {"INPUT": 2 if given else 1, "RESIDUAL": not given, "ACTIVATION": 0, "EXPERTS": given, "BIAS": given,
               "TOTAL": not given, "ADDED": False, "added_ptr": None}
        row |= dict.fromkeys(("residual_ptr", "norm_ptr") if given else ("id_ptr",))
        coded_kernels = [
            (coded._coded_kernel,
             in_tiles | {"BIAS": given, "SORTED": given, "TILE_M": 64 if given else 16, "TILE_N": of_tile.outputs,
                         "TILE_K": of_tile.inputs},
             {"num_warps": of_tile.warps, "num_stages": of_tile.stages}),
            *([] if given else [
                (coded._wide_kernel, in_tiles | {"TILE_N": wide_n, "TILE_K": wide_k}, {"num_warps": 4}),
                (coded._sum_kernel, {"BIAS": False, "COLUMNS": coded._COLUMNS}, {"num_warps": 4}),
            ]),
            (single_row_coded._coded_row_kernel,
             form | words | row | {"TILE_N": alone.outputs, "TILE_W": alone.inputs * bits // 32},
             {"num_warps": alone.warps}),
        ]
        types = {"code_ptr": "*u8", "weight_ptr": "*i32", "scale_ptr": "*fp32", "offset_ptr": "*fp32",
                 "table_ptr": "*fp32", "part_ptr": "*fp32", "order_ptr": "*i64", "row_ptr": "*i32",
                 "expert_ptr": "*i32", "id_ptr": "*i64"}
        for kernel, constants, options in coded_kernels:
            constants |= {name: None for name in without if name in kernel.arg_names}
            signature = {
                name: "constexpr" if name in constants else types.get(name, "*" + element) if name.endswith("_ptr")
                else "fp32" if name in ("slope", "limit", "epsilon") else "i32" for name in kernel.arg_names
            }
            aligned = {
                (place,): [["tt.divisibility", 16]] for place, name in enumerate(kernel.arg_names)
                if name in ("size", "row_bytes", "input_stride") or name.endswith("_ptr") and name not in constants
            }
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            assert compiled.metadata.shared <= 96 * 1024, (kernel.__name__, compiled.metadata.shared)
            assert stack_of(compiled) <= 512, (kernel.__name__, stack_of(compiled))
            print(kernel.__name__, kind, group, given, compiled.metadata.shared)

for tile in (16, 64) if (element, cached) == ("bf16", "bf16") else (64,) if element == "fp32" else ():
    for weight in {element, "bf16"}:
        types = {"weight_ptr": weight, "sum_ptr": "fp32", "start_ptr": "i64"}
        types |= {"input_ptr": element, "output_ptr": element}
        for kernel, constants in (
            (low_rank._shrink_kernel, {"TILE_K": low_rank._TILE_K}),
            (low_rank._expand_kernel, {"TILE_N": low_rank._TILE_N}),
        ):
            constants |= {"PARTS": 3, "TILE_M": 16, "TILE_R": tile}
            signature = {
                name: "constexpr" if name in constants else "*" + types.get(name, "i32") if name.endswith("_ptr")
                else "i32" for name in kernel.arg_names
            }
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
            assert compiled.metadata.shared <= 96 * 1024, (kernel.__name__, compiled.metadata.shared)

types = {"top_k_ptr": "*i32", "keys_ptr": "*i64", "counts_ptr": "*i32", "list_ptr": "*i32", "size_ptr": "*i32",
         "token_ids_ptr": "*i64"}
constants = {"TILE": sampling._TILE, "CHUNK_TILES": sampling._CHUNK_TILES, "MOST": sampling._MOST}
constants["CHUNK"] = step_inputs._CHUNK
types |= dict.fromkeys(("known_ptr", "place_ptr", "token_id_ptr"), "*i64")
types |= dict.fromkeys(("packed_ptr", "table_ptr"), "*i32")
for scoring, count, groups in ((0, 128, 1), (1, 256, 8), (2, 16, 1), (0, 160, 8)) if element == "fp32" else ():
    given = {"BIAS": scoring == 1, "FACTORS": count == 128, "PRESENT": count > 16}
    known = {**given, "SCORING": scoring, "RENORMALIZE": True, "EXPERTS": count, "GROUPS": groups,
             "GROUPS_PADDED": groups, "SIZE_PADDED": triton.next_power_of_2(count // groups), "CHOSEN_GROUPS": 4,
             "CHOSEN": 6, "CHOSEN_PADDED": 8}
    known |= {f"{name.lower()}_ptr": None for name, there in given.items() if not there}
    signature = {
        name: "constexpr" if name in known else {"id_ptr": "*i64", "present_ptr": "*i32"}.get(name, "*fp32")
        if name.endswith("_ptr") else "fp32" for name in routing._choose_kernel.arg_names
    }
    source = ASTSource(fn=routing._choose_kernel, signature=signature, constexprs=known)
    triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})

recurrent = [
    (convolution.convolve_kernel,
     {"TAPS": 4, "TARGETS": 0 if gated else 65, "HAS_BIAS": True, "ACTIVATES": not gated, "GATED": gated,
      "TILE_T": convolution.TILE_TOKENS, "TILE_C": convolution.TILE_CHANNELS}) for gated in (False, True)
] + [
    (recurrence.scan_channels_kernel, {"HAS_TARGETS": True, "SIZE": 16, "TILE_C": recurrence.columns(16, 8192)}),
    (recurrence.scan_heads_kernel, {"HAS_TARGETS": True, "HAS_BIAS": True, "SIZE": 128,
                                    "TILE_D": recurrence.columns(128, 64)}),
    (recurrence.units_kernel, {"HAS_TARGETS": True, "TILE_C": recurrence.TILE_UNITS}),
    *((recurrence.gated_norm_kernel, {"GROUPS": 1, "GATES_FIRST": True, "IS_SILU": True, "SIZE": size,
                                     "TILE_T": recurrence.norm_tile(size)}) for size in (256, 8192)),
] + [
    (recurrence.delta_kernel, {"HAS_TARGETS": not by_key, "BY_KEY": by_key, "SIZE": 128,
                               "TILE_D": recurrence.columns(128, 128)})
    for by_key in (False, True)
]
chunked, form = [], chunked_scan.operands(dtype)
for module, size, dim in ((chunked_scan, 128, 64), (chunked_delta, 96, 192), (chunked_delta, 128, 128)):
    tile = module.TILES.of(dtype, divmod(capability, 10))
    given = {"SIZE": chunked_scan.padded(size), "CHUNK": tile.chunk, "OPERAND": form.loaded,
             "PRECISION": form.precision}
    whole = given | {"TILE_D": tile.columns_of(size, dim)}
    if module is chunked_scan:
        chunked.append((module.chunked_scan_kernel, whole | {"HAS_BIAS": True}, tile))
    else:
        chunked.append((module.delta_chunks_kernel, given, tile._replace(warps=module.INVERSE_WARPS, stages=1)))
        chunked.append((module.chunked_delta_kernel, whole, tile))
state_types = {"start_ptr": "*i32", "slot_ptr": "*i64", "target_ptr": "*i64", "fresh_ptr": "*u8"}
state_types |= dict.fromkeys(("weight_ptr", "bias_ptr", "rate_ptr", "skip_ptr"), "*fp32")
state_types |= dict.fromkeys(("input_bias_ptr", "decay_bias_ptr"), "*fp32")
state_types |= dict.fromkeys(("factor_ptr",), "*fp32")
recurrent = [
    (kernel, known, 4 if kernel in (convolution.convolve_kernel, recurrence.gated_norm_kernel) else recurrence.WARPS, 3)
    for kernel, known in recurrent
] + [(kernel, known, tile.warps, tile.stages) for kernel, known, tile in chunked]
for kernel, known, warps, stages in mine(recurrent) if element in ("fp32", cached) else ():
    signature = {
        name: "constexpr" if name in known else state_types.get(name, "*" + element) if name.endswith("_ptr")
        else "fp32" if name in ("epsilon", "least", "most", "strongest", "scale") else "i32"
        for name in kernel.arg_names
    }
    # As at launches: addresses, heads' sizes and strides are multiples of 16.
    even = {name for name in signature if name.endswith(("_ptr", "_stride"))} | {"size", "dim"}
    attrs = {(index,): [["tt.divisibility", 16]] for index, name in enumerate(kernel.arg_names) if name in even}
    source = ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=attrs)
    options = {"num_warps": warps, "num_stages": stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    shared, stack = compiled.metadata.shared, stack_of(compiled)
    room = (227 if tiles.has_room(divmod(capability, 10)) else 99) * 1024
    assert shared <= room and stack <= (640 if warps > 1 else 0), (kernel.__name__, shared, stack)
    print(kernel.__name__, element, shared, stack)

others = (sampling._count_kernel, sampling._list_kernel, sampling._draw_kernel, step_inputs._unpack_kernel)
for kernel in others if element == "fp32" else ():
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*fp32") if name.endswith("_ptr") else "i32"
        for name in kernel.arg_names
    }
    known = {name: value for name, value in constants.items() if name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=known)
    triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
"""


# For each line, compiles in a process of its own, and answers how that ended: imports take longer than kernels that are
# in Triton's cache.
SERVER = """
code = compile(CODE, "kernels", "exec")
for line in sys.stdin:
    sys.argv[1:] = line.split()
    if not (child := os.fork()):
        output = os.open(sys.argv[6], os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def compiler() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", f"{IMPORTS}\nCODE = {CODE!r}\n{SERVER}"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.terminate()


# In parts, each of which takes a slow machine a minute or two.
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("element", "cached", "capability"),
    # float16 kernels are bfloat16 ones with another type; u8 is for GPUs without e4m3. Each generation gets some of
    # the combinations here; docs/gpu.md lists what was compiled for which.
    [
        ("bf16", "bf16", 90), ("fp32", "fp32", 80), ("bf16", "fp8e4nv", 89), ("bf16", "fp8e5", 100), ("bf16", "u8", 80),
    ],
)  # fmt: skip
def test_compiles_for_gpus(
    compiler: subprocess.Popen[str], tmp_path: Path, element: str, cached: str, capability: int, part: int
) -> None:
    assert compiler.stdin and compiler.stdout
    output = tmp_path / "output"
    compiler.stdin.write(f"{element} {cached} {capability} {part} {PARTS} {output}\n")
    compiler.stdin.flush()
    status = compiler.stdout.readline()
    printed = output.read_text()
    print(printed)
    assert status == "0\n", printed[-3000:]
