"""Cases that the whole suite leaves to the nightly run, beside those that carry the marker `exhaustive` in their files.

Each repeats what other cases of its file or folder test (with another backend, family, size or signal) and takes
seconds of a core. A name stands for a test with all its cases.
"""

from collections.abc import Mapping

FURTHER_CASES: Mapping[str, tuple[str, ...]] = {
    "attacks/answers/test_large_prompts.py": (
        "test_long_prompts_are_rendered_in_pieces[prompts]",
        "test_long_prompts_are_rendered_in_pieces[choices]",
    ),
    "attacks/answers/test_queued_requests.py": (
        "test_a_server_that_ends_answers_all_that_wait",
        "test_the_sequences_of_a_few_requests_are_queued_and_cancelled_together",
        "test_the_sequences_of_a_worker_that_dies_are_queued_again[SIGTERM]",
    ),
    "attacks/answers/test_resumable_places.py": ("test_streams_that_are_left_behind_do_not_lock_others_out",),
    "attacks/environment/test_clocks.py": ("test_a_wall_clock_that_jumps_ends_nothing[four centuries]",),
    "attacks/environment/test_shared_cache.py": ("test_two_gateways_share_an_empty_cache",),
    "attacks/grammars/test_hostile_grammars.py": (
        "test_a_client_is_held_back_after_runaways_and_no_other_one",
        "test_a_hostile_grammar_harms_nobody[40,000 choices]",
        "test_a_hostile_grammar_harms_nobody[20,000 optional strings]",
    ),
    "attacks/http/test_floods.py": ("test_many_requests_with_a_window_update_each_are_served",),
    "attacks/workers/test_lies.py": tuple(
        f"test_a_lie_ends_the_worker_and_no_request[{lie}]"
        for lie in (
            *("cancelled_unasked", "endless_text", "invented_stop", "invented_completion", "logprobs_of_another"),
            *("long_last_text", "missing_prompt", "prompt_with_a_gap", "second_ready", "too_many_likely"),
        )
    ),
    "baton_serve/test_shadowed.py": (
        "test_the_probes_of_the_doctor[from_wheel]",
        "test_the_server_that_chaos_breaks[from_wheel]",
    ),
    "bench/gpu/test_stages.py": tuple(f"test_wrong_logits_fail_a_stage[{kind}]" for kind in ("nan", "score", "token")),
    "bench/harness/test_settled.py": ("test_graphs_are_compiled_before_a_model_is_loaded",),
    "bench/mutation_test/test_trial.py": (
        "test_a_test_that_fails_once_without_a_mutant_is_left_out_of_the_time_of_its_suite",
        "test_a_test_that_fails_only_once_has_not_noticed_the_mutant",
        "test_a_test_that_hangs_has_noticed_the_mutant",
        "test_tests_that_fail_without_a_mutant_tell_nothing",
    ),
    "bench/peers/test_rivals.py": ("test_a_peer_with_another_model_ends_the_run",),
    "bench/test_engine.py": ("test_a_peer_is_measured_beside_the_engine",),
    "cli/commands/models/test_pull.py": ("test_the_shell_completes_models_of_the_cache",),
    "cli/commands/models/test_rm.py": (
        "test_what_a_worker_serves_by_a_link_is_not_removed",
        "test_without_a_terminal_a_flag_is_needed",
    ),
    "cli/commands/models/test_run.py": (
        "test_a_chat_lasts_as_long_as_its_input",
        "test_engine_options_are_those_of_a_server_of_its_own",
        "test_its_server_ends_with_it[SIGINT]",
        "test_the_builtin_model_has_a_name",
        "test_without_a_terminal_a_missing_model_is_pulled",
    ),
    "cli/commands/test_chaos.py": ("test_an_owned_server_is_broken_from_within_and_stopped[1]",),
    "cli/commands/test_serve.py": (
        "test_a_public_server_without_a_key_logs_a_warning[listen1-False]",
        "test_a_public_server_without_a_key_logs_a_warning[listen2-False]",
    ),
    "cli/commands/test_serve_models.py": (
        "test_a_server_whose_models_are_all_loaded_on_first_use_says_so_and_is_taken_over",
    ),
    "cli/commands/test_serve_unix.py": ("test_a_take_over_refuses_nobody_on_the_unix_socket[beside a port]",),
    "cli/commands/test_top.py": (
        "test_a_pipe_gets_one_picture[API key]",
        "test_a_pipe_gets_one_picture[admin key]",
        "test_a_pipe_gets_one_picture[both]",
    ),
    "docs/test_contributing.py": (
        "test_a_command_works[pytest tests/workers/inspection --cov=workers.inspection]",
        "test_a_command_works[pytest tests/workers/inspection]",
    ),
    "gateway/dialects/test_kills.py": ("test_kills_change_nothing_for_any_client[constrained]",),
    "gateway/faults/test_killed_prompts.py": (
        "test_a_prompt_is_reported_once_whatever_worker_reports_it[after the prompt]",
        "test_a_prompt_is_reported_once_whatever_worker_reports_it[in the answer]",
    ),
    "gateway/faults/test_killed_workers.py": (
        "test_streams_go_on_with_another_worker[garble_message]",
        "test_streams_go_on_with_another_worker[oversize_message]",
        "test_streams_go_on_with_the_restart[nearly done]",
        "test_streams_go_on_with_the_restart[sent]",
    ),
    "gateway/fleet/test_operations.py": (
        "TestExtraWorkers::test_it_leaves_when_the_old_one_went_back_to_its_checkpoint",
        "TestExtraWorkers::test_it_serves_in_the_place_of_one_that_does_not_come_back[/admin/workers/w0/restart]",
        "test_a_checkpoint_that_cannot_be_served_changes_nothing[alone-broken]",
        "test_a_rolling_restart_refuses_nobody[an extra worker]",
        "test_a_stream_that_outlives_the_grace_goes_on_with_the_next_worker[/admin/reload]",
    ),
    "gateway/fleet/test_take_over.py": ("test_streams_outlive_a_chain_of_gateways",),
    "gateway/fronts/test_fronts.py": ("test_connections_are_bounded_over_all_fronts",),
    "gateway/models/test_real_models.py": (
        "test_streams_outlast_a_checkpoint_that_cannot_be_loaded_in_its_place[2]",
        "test_workers_are_drained_restarted_and_replaced_one_by_one_as_before",
    ),
    "gateway/routing/admission/test_overload.py": (
        "test_retry_after_is_right_soon_after_other_clients_come_or_go[go]",
    ),
    "gateway/test_moved_streams.py": (
        "test_a_stream_goes_on_when_either_worker_is_killed[after it-d-True]",
        "test_a_stream_goes_on_when_either_worker_is_killed[after it-p-False]",
        "test_a_stream_goes_on_when_either_worker_is_killed[in the prompt-d-False]",
        "test_a_stream_goes_on_when_either_worker_is_killed[in the transfer-p-True]",
    ),
    "reference/scores/test_score.py": (
        "test_tokens[iree-llama-8-bit]",
        "test_tokens[iree-qwen2-biased-all-kv-heads]",
        "test_tokens[iree-qwen3-one-kv-head]",
    ),
    "reference/test_bfloat16.py": ("test_logits[iree-gemma]", "test_logits[iree-granitemoe]"),
    "reference/test_families.py": (
        *("test_graphs_in_jax[deepseek_v2]", "test_graphs_in_jax[gemma3_text-uneven]"),
        *("test_graphs_in_jax[phi3-uneven]", "test_graphs_in_jax[stablelm]"),
    ),
    "test_end_to_end.py": (
        "test_concurrent_requests_get_what_each_gets_alone[mlx]",
        "test_non_finite_logits_are_a_gap_and_nothing_else[mlx]",
        "test_the_server_answers_what_generate_answers[mlx]",
    ),
    "workers/iree/kernels/attention/test_attention.py": (
        "test_attention[plain-bf16-widened]",
        "test_attention[softcap-int4-f32]",
        "test_attention[window-f32]",
    ),
    "workers/iree/kernels/matmul/test_quantized_linear.py": ("test_products[AVX2]", "test_products[exact]"),
    "workers/iree/kernels/moe/test_experts.py": (
        "test_mixtures[float32-ungated]",
        "test_mixtures[int4-ungated]",
        "test_mixtures[int8]",
    ),
    "workers/iree/test_gate.py": (
        "test_gate_of_windows_experts_and_multipliers[multipliers]",
        "test_logits_with_quantized_weights_are_bitwise_identical[qwen2-int8-float32-host]",
        "test_rows_from_others_are_as_good_as_computed_ones[bfloat16]",
        "test_the_number_of_threads_changes_no_bit[more than cores]",
    ),
    "workers/iree/test_generic.py": ("test_quantized_checkpoints_are_widened",),
    "workers/iree/test_uneven.py": ("test_logits_are_bitwise_identical[llama-uneven-bfloat16]",),
    "workers/mlx/test_quantized_kv.py": ("test_gate[drafts]",),
    "workers/mlx/test_runner.py": (
        "test_gate_with_a_draft_model[the model itself]",
        *(f"test_small_gate[{name}]" for name in ("gemma", "mistral", "mixtral", "phi", "qwen2", "stablelm")),
    ),
    "workers/process/startup/test_footprint.py": ("test_a_worker_reports_no_more_and_about_as_much[int8]",),
}
"""Tests by the file under `tests/`."""
