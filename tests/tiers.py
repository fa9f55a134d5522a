"""Which tests `make test` leaves to `make test-all`.

`make test` covers every feature once with real parts and needs no environment but `.venv`; it is to end within 12
minutes on two cores, from a fresh clone. A test is *extended* when it repeats what another test shows (another size,
seed, dtype or architecture of the same comparison), when it takes much longer than others of its subject, or when it
needs PyTorch, other people's programs or the TPU compiler. `conftest` gives those the marker `extended`.

A row names a folder, a file or a test, relative to `tests/`. Of a parametrised test the cases named in `keep` stay in
`make test`. `@pytest.mark.extended` in a test's own file does the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

TORCH, TPU, CLIENTS = "needs PyTorch", "needs the TPU compiler", "needs other people's programs"
LONG, REPEATS = "takes long", "repeats a comparison"
AMX = (
    "on a CPU without AMX, needs a shim for it that takes 40 s to build; with AMX, the engine's tests run these kernels"
)
# A test with one of these fixtures is extended.
FIXTURES = {"reference_python": TORCH}
# Of these parameters only the first value stays in `make test`, in the folders named.
FIRST_ONLY: Mapping[str, tuple[str, ...]] = {
    "seed": ("",),
    "dtype": ("kernels/", "engine/", "loading/test_export.py"),
    "with_bias": ("kernels/",),
}
# Long files begin first, so that two workers end together; while the first builds the C++, the next ones need none.
FIRST_FILES = (
    "integrations/ray_env/test_ray.py",
    "parallel/test_virtual_devices.py",
    "kernels/hopper/test_layer_ops.py",
    "kernels/hopper/test_attention.py",
    "parity/test_torch_parity.py",
    "server/end_to_end/test_run.py",
    "server/engines/test_client.py",
    "bench/online/test_run.py",
    "bench/offline/test_mixed.py",
    "server/end_to_end/test_any_traffic.py",
    "kernels/tpu/test_attention.py",
    "engine/end_to_end/test_modes.py",
)


@dataclass(frozen=True)
class Extended:
    test: str
    why: str
    keep: tuple[str, ...] = ()  # ids of parameters, as pytest shows them between brackets

    def matches(self, node: str) -> bool:
        """`node` is pytest's id of a test, relative to `tests/`."""
        name, _, case = node.partition("[")
        inside = name == self.test or name.startswith((f"{self.test}::", f"{self.test}/"))
        return inside and not (case and case.removesuffix("]") in self.keep)


EXTENDED = (
    Extended("browser", CLIENTS),
    Extended("clients", CLIENTS),
    Extended("integrations", CLIENTS),
    Extended("server/fuzz/test_fuzz.py::test_schemathesis_finds_nothing", CLIENTS),
    Extended("bench/offline/test_peers.py::test_transformers_scores_what_onepass_scores", TORCH),
    Extended("bench/offline/test_peers.py::test_a_serial_peer_may_score_a_sample", TORCH),
    Extended("bench/offline/test_mixed.py::test_transformers_answers_the_same_requests", TORCH),
    Extended("validate/test_suite.py::test_a_perturbed_weight_is_found_by_pytorch", TORCH),
    Extended("cli/test_validate.py::test_pytorch_alone_is_compared_or_the_command_fails", TORCH),
    Extended("cli/test_plan.py::test_a_tpu_is_planned_with_compiled_programs", TPU),
    Extended("kernels/tpu/test_compiled.py", TPU),
    Extended("capacity/test_compiler.py", TPU),
    Extended("capacity/test_tpu_aot.py::test_a_whole_program_compiles_and_fits_the_chip", TPU),
    Extended("parallel/test_topology.py::test_described_devices_are_of_the_kind_and_number_asked_for", TPU),
    Extended("repository/test_wheel.py::test_the_installed_wheel_scores", LONG),
    Extended(
        "parallel/test_virtual_devices.py::test_on_eight_devices",
        LONG,
        keep=("test_split_classifiers.py", "test_replicas.py"),
    ),
    Extended("server/end_to_end/test_any_traffic.py", LONG),
    Extended(
        "engine/end_to_end/test_any_traffic.py::test_3000_requests_of_any_kind_compile_nothing_and_score_as_serial",
        LONG,
    ),
    Extended(
        "engine/programs/test_key.py::test_digest_is_the_same_in_another_process_and_changes_with_xla_flags_and_jax_settings",
        LONG,
    ),
    Extended(
        "engine/programs/test_kept.py::test_every_program_of_a_model_is_found_by_another_process_and_computes_the_same",
        REPEATS,
    ),
    Extended(
        "engine/end_to_end/test_modes.py::test_items_longer_than_a_step_are_computed_over_several",
        REPEATS,
        keep=(
            "cold-[3, 40, 0, 70, 2, 0]-packed",
            "cold-[3, 40, 0, 70, 2, 0]-chunked",
            "cached-[3, 40, 0, 70, 2, 0]-extend",
        ),
    ),
    Extended(
        "engine/end_to_end/test_modes.py::test_an_empty_item_is_scored_at_the_querys_last_token",
        REPEATS,
        keep=tuple(f"[0, 2, 6, 7]-{mode}" for mode in ("packed/dense", "packed/segment", "chunked", "extend")),
    ),
    Extended(
        "engine/encoding/test_continuations.py::test_a_continuation_of_more_tokens_than_a_step_reads_out_is_read_over_several",
        REPEATS,
        keep=tuple(f"200-{mode}" for mode in ("packed/dense", "packed/segment", "chunked", "extend")),
    ),
    Extended("engine/test_gguf_blocks.py::test_blocks_of_a_real_file_score_as_the_widened_file", LONG),
    Extended(
        "engine/programs/test_store_processes.py::test_program_is_not_found_where_the_process_has_other_devices", LONG
    ),
    Extended("engine/scheduling/test_scheduler.py::test_64_concurrent_requests_of_mixed_sizes_score_as_serial", LONG),
    Extended("engine/end_to_end/test_modes.py::test_a_model_of_one_layer_scores", REPEATS),
    Extended("engine/end_to_end/test_modes.py::test_chunk_size_does_not_matter", REPEATS, keep=("5",)),
    Extended("bench/online/test_mixed.py::test_a_server_is_driven_with_mixed_traffic", LONG),
    Extended("bench/online/test_run.py::test_a_server_with_quantized_weights_is_judged_as_such", LONG),
    Extended("bench/online/test_run.py::test_texts_of_mixed_sizes_arrive_at_the_rate", LONG),
    Extended(
        "loading/gguf/test_file.py::test_the_header_of_a_real_model_is_read_many_times_as_fast_as_by_the_library", LONG
    ),
    Extended(
        "validate/test_drift.py::test_the_drift_of_eight_bits_is_reported_and_weights_that_are_not_the_model_fail", LONG
    ),
    Extended(
        "parity/test_torch_parity.py::test_probabilities_equal_stored_values_of_torch",
        REPEATS,
        keep=("qwen3", "llama3", "qwen2"),
    ),
    Extended(
        "kernels/hopper/test_layer_ops.py::test_a_layer_lowers_for_a_gpu_that_is_not_here",
        REPEATS,
        keep=("512-16 bits",),
    ),
    Extended(
        "kernels/hopper/test_layer_ops.py::test_no_tile_is_computed_beyond_the_last_real_token",
        REPEATS,
        keep=("512-300",),
    ),
    Extended(
        "kernels/hopper/test_layer_ops.py::test_qkv_equals_product_norm_and_rotation",
        REPEATS,
        keep=("True-2-130",),
    ),
    Extended("kernels/hopper/test_layer_ops.py::test_a_whole_layer_equals_xla_s_at_every_count", LONG),
    Extended("kernels/hopper/test_attention.py::test_every_grouping_of_heads_and_both_sizes", REPEATS),
    Extended(
        "cli/test_validate.py::test_only_the_checks_that_are_asked_for_are_run",
        REPEATS,
        keep=("isolation-same-length isolation",),
    ),
    Extended("parallel/test_hosts.py::test_processes_that_would_run_different_things_are_refused", LONG),
    Extended("server/engines/test_client.py::test_an_engine_that_starts_slowly_is_waited_for", LONG),
    Extended("server/engines/test_client.py::test_an_engine_that_never_starts_is_replaced", LONG),
    Extended("bench/online/test_run.py::test_more_clients_than_the_server_admits_void_a_row", LONG),
    Extended("bench/offline/test_mixed.py::test_a_wrong_score_of_any_kind_voids_the_row", REPEATS, keep=("small",)),
    Extended("kernels/hopper/test_attention.py::test_the_comparison_fails_with_another_layer_s_pages", LONG),
    Extended(
        "kernels/hopper/test_attention.py::test_the_kernels_lower_for_a_gpu_that_is_not_here",
        REPEATS,
        keep=("wide-128-2",),
    ),
    Extended(
        "kernels/hopper/test_attention.py::test_the_kernel_equals_the_reference",
        REPEATS,
        keep=("one cold request", "kept context"),
    ),
    Extended("kernels/hopper/test_attention.py::test_results_in_eight_bits_are_the_same_rounded", REPEATS),
    Extended("kernels/cpu/amx/test_amx.py", AMX),
    Extended("kernels/cpu/amx/test_amx_int8.py", AMX),
    Extended("kernels/cpu/amx/test_layer_ops.py", AMX),
    Extended("kernels/hopper/test_attention.py::test_the_kernel_equals_the_reference_on_random_steps", REPEATS),
    Extended(
        "kernels/tpu/test_attention.py::test_the_kernel_equals_the_reference",
        REPEATS,
        keep=("one cold request", "kept context", "no context"),
    ),
    Extended("kernels/tpu/test_attention.py::test_the_kernel_equals_the_reference_on_random_steps", REPEATS),
    Extended("kernels/tpu/test_attention.py::test_heads_of_128_equal_the_reference", REPEATS),
    Extended(
        "kernels/tpu/test_attention.py::test_the_tiles_that_are_visited_are_those_of_the_ranges_and_no_others", LONG
    ),
    Extended(
        "models/test_quantize.py::test_a_layer_computes_the_same_within_the_rounding_of_its_weights",
        REPEATS,
        keep=("qwen3-0.6b",),
    ),
    Extended("models/test_decoder.py::test_blocks_of_tokens_change_nothing", REPEATS, keep=("30",)),
    # Each takes 5 to 20 s of a core; what it shows is shown by the test named, or by the cases kept.
    Extended("engine/programs/test_store_processes.py::test_two_processes_save_load_and_evict_in_one_folder", LONG),
    Extended("engine/programs/test_store_processes.py::test_program_of_two_devices_loads_in_another_process", REPEATS),
    Extended(
        "engine/programs/test_store_processes.py::test_killed_writer_leaves_nothing_that_is_read",
        REPEATS,
        keep=("points1",),
    ),
    Extended(
        "engine/programs/test_digests.py::test_lowered_programs_are_unchanged",
        REPEATS,
        keep=(
            "qwen3-0.6b cpu xla",
            "smollm2-135m cpu xla",
            "qwen2.5-0.5b cpu xla dense",
            "qwen3-0.6b tpu pallas-tpu",
        ),
    ),
    Extended("engine/test_packing.py::test_every_token_sees_what_the_definition_says", REPEATS, keep=("2",)),
    Extended("engine/end_to_end/test_exit.py::test_a_program_that_closes_nothing_ends_well", REPEATS, keep=("50",)),
    Extended("engine/test_runner.py::test_a_step_does_not_copy_the_pool", REPEATS, keep=("step-own", "copy-own")),
    Extended(
        "kernels/cpu/test_attention.py::test_cpu_attention_takes_every_group_and_head_dim",
        REPEATS,
        keep=("1-40", "12-128"),
    ),
    # The same of a whole server: server/end_to_end/test_run.py::test_a_killed_engine_…, test_a_stopped_engine_…
    Extended("server/engines/test_client.py::test_a_killed_engine_fails_its_requests_at_once_and_comes_back", REPEATS),
    Extended("server/engines/test_client.py::test_a_hung_engine_is_noticed_and_replaced", REPEATS),
    # Files of garbage are engine/programs/test_store_faults.py::test_damaged_file_is_deleted_…
    Extended(
        "server/end_to_end/test_run.py::test_damaged_programs_cost_time_and_nothing_else", REPEATS, keep=("full disk",)
    ),
    Extended("server/end_to_end/test_run.py::test_a_request_of_many_steps_needs_no_more_device_memory_than_one", LONG),
    Extended("server/test_extending.py::test_the_model_and_the_kernel_of_the_page_score_as_they_must", LONG),
    Extended("bench/online/test_run.py::test_typed_questions_are_posted_as_text", REPEATS, keep=("decisions",)),
    Extended(
        "parity/test_torch_parity.py::test_a_wrongly_read_config_would_be_noticed",
        REPEATS,
        keep=("llama3-change0", "qwen3-change4"),
    ),
    Extended(
        "documentation/test_examples.py::test_example_runs_and_gets_its_texts_right",
        REPEATS,
        keep=("score", "rank", "contexts"),
    ),
)


def is_extended(node: str, fixtures: tuple[str, ...], indices: Mapping[str, int]) -> bool:
    """`indices`: of each parameter, which of its values the test has."""
    if any(name in FIXTURES for name in fixtures):
        return True
    for parameter, folders in FIRST_ONLY.items():
        if indices.get(parameter, 0) > 0 and node.startswith(folders):
            return True
    return any(row.matches(node) for row in EXTENDED)


def place_in_order(node: str) -> int:
    """Files of `FIRST_FILES` come first; the others stay in pytest's order after them."""
    file = node.partition("::")[0]
    return FIRST_FILES.index(file) if file in FIRST_FILES else len(FIRST_FILES)
