"""Which cases `--runslow` leaves to `--exhaustive`, and what covers them there.

By file patterns of the names of its cases, each with what covers them. A pattern takes none of the cases that
the default run has. A slow case that no pattern finds runs with `--runslow`: so does a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

WORKERS = "the same with 2 workers"
DEVICES = "the same on 2 devices"
ONE_DEVICE = "the same on several workers"
S3 = "the same in a folder; tests/storage has each operation on S3"

# Programs that are killed and resumed with --exhaustive only.
RESUMED = "|".join(
    (
        *("autoencoder", "mixed_float16", "own_fit", "returned_losses"),
        *("bilstm", "captcha_ctc", "clipping", "convnet", "custom_loop", "distillation"),
        *("efficient_embeddings", "ema", "endpoint_layer", "graph_attention", "imbalanced", "issue_tickets"),
        *("masked_tagger", "miniature_gpt", "mixed_bfloat16", "rate_callbacks", "recommender", "schedules"),
        *("steps_loop", "text_transformer", "timeseries_transformer", "train_step_compiled"),
        *("train_step_guide", "vae", "vision_transformer", "vision_transformer_ops", "weight_decay"),
        *("wgan_gp", "wide_deep"),
    )
)

EXHAUSTIVE: Mapping[str, Mapping[str, str]] = {
    "cli/commands/test_delete.py": {r"\[s3": S3},
    "cli/commands/test_kept_runs.py": {r"\[s3": S3},
    "cli/commands/test_list.py": {r"\[s3": S3},
    "cli/commands/test_logs.py": {r"^test_follower_goes_on.*\[s3": S3},
    "cli/commands/test_status.py": {r"^test_watch_shows.*\[s3": S3},
    "data/sources/test_faulty_store.py": {r"made_again\[images": "the other sources read by the same files"},
    "deploying/test_slurm.py": {r"\[requeue": "[time-limit], where the script requeues its job itself"},
    "e2e/test_data_order.py": {
        r"train_on_the_batches_of_one\[[34]": WORKERS,
        r"^test_killed_worker": "shrinking_from_3_to_2, whose workers become fewer as one is killed",
    },
    "e2e/test_datasets.py": {
        r"^test_killed_worker": "runtime/cluster/test_datasets.py splits the data again"
    },
    "e2e/test_data_workers.py": {
        r"^test_killed_data_worker": "test_failures.py; a data worker's death is that of a task",
    },
    "e2e/test_dead_ray.py": {
        r"\[EnvAgent": "[/raylet ], without which Ray ends as well",
        r"ends_the_run_and_leaves_nothing\[all": "[group], and the tests beside it that end Ray's processes",
    },
    "e2e/test_detached.py": {
        r"^test_controller_killed": "runs/test_detached.py without training, training/test_checkpoints.py",
    },
    "e2e/test_embedding_jobs.py": {
        r"\[legacy": "[3], and tests/compat for tf_keras",
        r"^test_imdb_learns": "recommender, whose tables are larger; tests/jobs/test_imdb.py reads its data",
        r"^test_workers_that_exchange": "programs/test_equality.py: recommender, efficient_embeddings",
    },
    "e2e/test_every_command.py": {
        r"\[s3": S3,
        r"^test_command\[.*-(finished|failed|damaged)\d?\]": "[live]; tests/cli/commands on kept runs",
    },
    "e2e/test_kept_state.py": {
        r"\[--strategy-(one_device|central_storage)": "[--strategy-mirrored---devices-2]",
    },
    "e2e/test_notebooks.py": {r"\[attached\]": "[local]; training/test_scripts.py: notebook_runs"},
    "e2e/test_hosts.py": {
        r"comes_back_on_another_one\[1": "[0]",
        r"^test_run_over_two": "the tests beside it kill one of two hosts; tests/deploying",
    },
    "e2e/test_input_data.py": {
        r"\[parameter_server": "[multi_worker_mirrored]",
        r"^test_replaced_worker": "training/test_recipes.py without Ray",
    },
    "e2e/test_jobs.py": {
        r"learns_under\[cifar-": "jobs/digits.py under each strategy; jobs/cifar.py with parameter servers",
        r"learns_under\[digits-multi_worker": "the README's job in test_failures.py",
    },
    "e2e/test_parameter_server.py": {r"holds_the_state.*\[chief": "[ps/0], which ends the same way"},
    "e2e/test_parameter_server_jobs.py": {
        r"\[(recommender|imdb)-legacy": "[recommender-3], and tests/compat for tf_keras",
        r"\[recommender-sharded": "training/test_parameter_server.py shards variables",
        r"\[imdb-3": "[recommender-3], which has embeddings as well",
    },
    "e2e/test_profile.py": {r"\[s3": S3},
    "e2e/test_prometheus.py": {r"\[detached": "[attached]; the controller is the same"},
    "e2e/test_python_api.py": {r"\[running": "[ended]"},
    "e2e/test_scripts.py": {
        r"bare_processes\[(multi_worker_custom_loop|distributed_input)\.py-3": "training/test_scripts.py",
        r"bare_processes\[custom_training\.py-legacy": "training/test_scripts.py",
        r"^test_killed_worker.*\[multi_worker_custom_loop\.py-3": "[multi_worker_keras.py-legacy]",
        r"^test_parameter_server_script_trains\[all": "[fit]; training/test_scripts.py",
    },
    "e2e/test_secrets.py": {r"\[s3": S3},
    "e2e/test_slow_links.py": {r"^test_task_on_a_slow_link": "training/test_slow_links.py; tests/stragglers"},
    "e2e/test_stragglers.py": {
        r"\[(compute|another process on its host)": "training/test_collective_clock.py; tests/stragglers",
    },
    "e2e/test_survival.py": {
        r"changes_nothing\[start-up-3-worker": "[start-up-2-worker/0]",
        r"changes_nothing\[step-(2|3)-worker": "[step-2-worker/1], and test_failures.py",
        r"changes_nothing\[upload-3-worker": "[upload-2-worker/0]",
        r"has_to_leave.*\[worker/1": "[worker/0]",
    },
    "e2e/test_tensorboard.py": {r"\[s3": S3},
    "e2e/test_verify.py": {r"^test_run_": "the planted difference, before which all steps are equal"},
    "e2e/test_virtual_replicas.py": {r"legacy": "the same with Keras 3; training/test_virtual_replicas.py"},
    "jobs/test_gallery.py": {r"\[2 devices": WORKERS},
    "fuzz/test_programs.py": {
        r"\[[34]-3\]": "other seeds, and what was wrong once",
        r"\[(1[34]|loop20)-legacy\]": "other seeds, and what was wrong once",
        r"^test_(mirrored_steps|losses_of_layers)": "training/test_sparse_gradients.py, test_shown_values.py",
        r"^test_parameter_servers.*\[legacy": "the same with Keras 3",
    },
    "programs/test_equality.py": {
        r"-keras legacy": "the same with Keras 3; tests/compat has four of them with tf_keras",
        r"-keras 3-(3 workers|2 devices)": WORKERS,
        r"\[(autoencoder|bilstm|captcha_ctc|issue_tickets|efficient_embeddings)-": (
            "convnet, text_transformer, recommender and wide_deep, of the same layers"
        ),
        r"\[(timeseries_transformer|vision_transformer|vision_transformer_ops)-": "miniature_gpt, convnet",
        r"\[mixed_bfloat16-": "mixed_float16",
        r"\[(clipping|schedules|weight_decay)-": "training/test_keras_patches.py, test_optimizers.py; fuzz",
        r"\[(distillation|endpoint_layer|train_step_compiled)-": "train_step_guide; test_loss_rules.py",
        r"\[imbalanced-": "training/test_fit_arguments.py: class_weight",
    },
    "programs/test_notes.py": {
        r"-keras legacy": "the same with Keras 3",
        r"\[(ner|lstm_dropout)-": "supervised_contrastive, convnet_regularized; training/test_loss_rules.py",
        r"\[(attention_dropout|augmentation|dcgan_random|vae_random)-": "convnet_regularized",
        r"\[(ema_overwrite|gradient_accumulation)-": "training/test_keras_patches.py: what_cannot_work",
    },
    "programs/test_resume.py": {
        r"-keras legacy": "the same with Keras 3; tests/compat resumes two of them",
        rf"\[({RESUMED})-keras 3-": "dcgan; training/test_checkpoints.py; tests/compat",
    },
    "runs/test_detached.py": {r"submitter_ended.*\[(kill-0\.5|ctrl-c-0\.0)": "[kill-0.0], [ctrl-c-0.5]"},
    "runtime/cluster/test_connection.py": {
        r"^test_wrong_or_missing.*\[missing-client": "[missing-address], [wrong-client_address]",
        r"^test_wrong_or_missing.*\[missing in token mode": "[missing-address]; test_token_mode…",
        r"^test_dead_address.*\[ray://": "[127.0.0.1:1], and the client's address in test_client_address…",
        r"^test_server_that_is_no_ray.*\[ray://": "[]",
        r"^test_inside_a_ray_worker.*\[actor": "[task]",
    },
    "runtime/group/test_dead_ray.py": {r"\[killed-True": "[closed-False]; e2e/test_dead_ray.py kills"},
    "runtime/group/test_other_hosts.py": {r"spread_over_the_nodes\[larger-workers": "[equal]"},
    "runtime/group/test_replacement.py": {
        r"^test_stop_during.*\[(0\.0-2|0\.3-1|0\.6-[12]|1\.0-2)": "[0.0-1], [0.3-2], [1.0-1]",
    },
    "storage/test_faulty_store.py": {r"\[(INTERNAL_ERROR|SLOW_DOWN)": "the four faults of the default run"},
    # Those with tf_keras are above, in TF_KERAS.
    "training/test_accumulation.py": {
        r"larger_one\[2 devices-3-quick": "[2 workers-3-quick], [one device-3-quick]",
        r"larger_one\[.*-3-others": "[2 workers-3-quick]; gradients_are_clipped…, half_precision…",
    },
    "training/test_checkpoints.py": {
        r"cannot_be_stored.*\[(train_steps|save)": "[fit]",
        r"command_to_one.*\[(train_steps|fit|own fit|steps per execution|data of unknown length)-3": (
            "[watched by the chief-3]; test_parameter_server.py: command_to_save"
        ),
        r"saves_every_second\[(own fit after evaluate|train_steps)-": "[fit-multi_worker_mirrored-2-keras3]",
        r"saves_every_second\[fit-(one_device|parameter_server)": "[fit-multi_worker_mirrored-2-keras3]",
        r"early_stopping.*\[parameter_server": "[mirrored-2-keras3]",
        r"random_numbers.*\[(one_device|mirrored)-": WORKERS,
        r"loses_neither\[one_device": WORKERS,
        r"own_place\[second model": "[first model-3]",
        r"^test_worker_that_restored_something_else.*\[no checkpoint": "[another weight]",
    },
    "training/test_collective_clock.py": {
        r"with_its_cause\[(compute|another process)": "[data]; tests/stragglers for each cause",
        r"by_a_bit\[3-sparse": "[3-dense gradients]; test_sparse_gradients.py",
    },
    "training/test_communication.py": {
        r"stated_at_most\[3-2 devices": WORKERS,
        r"what_it_costs\[bf16": "[fp16]",
    },
    "training/test_compute_dumps.py": {r"\[folder-not compiled|\[s3-": "[folder-compiled]"},
    "training/test_context.py": {r"undisturbed_one\[steps": "[epochs]; test_checkpoints.py"},
    "training/test_determinism.py": {r"same_weights\[(2 workers|mirrored)-3": "[one device-3]"},
    "training/test_equality.py": {r"one_device\[(mirrored on 2 devices|3 workers)-3": WORKERS},
    "training/test_export.py": {
        r"final_weights\[parameter_server": WORKERS,
        r"of_the_strategy\[.*keras3-no config": "[multi_worker_mirrored-2-keras3-config]",
    },
    "training/test_fit_arguments.py": {
        r"TestAsOnOneDevice::.*(parameter_server-1\+1|multi_worker_mirrored-2)-keras3\]": DEVICES,
        r"class_weight\[batches-3": "[function-3]",
    },
    "training/test_given_data.py": {
        r"TestAsOnOneDevice::.*(-|\[)(mirrored-2-keras3|multi_worker_mirrored-2-keras3_1)\]": WORKERS,
        r"resumes_exactly\[(py dataset(?!.*padded)|generator|steps).*-3\]": "[shuffled-3]; test_recipes.py",
    },
    "training/test_keras_patches.py": {r"TestUsersOwnFit::.*\[central storage-3": DEVICES},
    "training/test_lazy_imports.py": {r"on_demand\[s": "[trains], which imports most"},
    "training/test_late_build.py": {
        r"\[(multi_worker_mirrored|central_storage)-": "[mirrored-2-keras3]",
    },
    "training/test_loss_rules.py": {
        r"2 workers(-3)?\]": DEVICES,
        r"of_one_device\[(function, each|step, average loss|step, loss object and mean)-": (
            "[function, sum], [step, divided by replicas], [step, mean]"
        ),
        r"or_told\[step, (loss object and mean|average loss|divided by replicas|random)-": (
            "[step, mean], [step, divided by three], and the same losses in `fit`"
        ),
        r"or_told\[loop, number of its own-": "[loop, divided outside]",
        r"nothing_else\[(a layer that draws|a sum and a dropout|a loss that draws)-": "[a dropout]",
        r"nothing_else\[an? (pruned|averaged) layer and Keras's loss-": "the same with a loss of the user's",
        r"nothing_else\[(a layer that slices|a model that compares|text under a mask)-": (
            "[a layer that compares], [text as long as the longest]"
        ),
        r"nothing_else\[(a layer of the user's|Keras's layers)-": "[a model of Keras's layers]",
    },
    "training/test_model_summaries.py": {
        r"\[(multi_worker_mirrored|parameter_server)-3": "[mirrored-3]",
    },
    "training/test_optimizers.py": {
        r"\[(mirrored|multi_worker_mirrored)-2-keras3": "[central_storage-2-keras3]",
    },
    "training/test_parameter_server.py": {
        r"number_of_ps\[(more ps|whole)": "[other shards]",
        r"\[sharded": "[keras 3]",
    },
    "training/test_plain_fit.py": {
        r"nothing_else\[(multi_worker_mirrored-2|one_device-1)-keras3": "[one_device-1-keraslegacy]",
        r"nothing_else\[mirrored-2-keraslegacy": "[one_device-1-keraslegacy]; test_scripts.py",
    },
    "training/test_plain_pipelines.py": {
        r"each_global_batch\[3\]": WORKERS,
        r"of_every_pipeline\[(2-[12]|5-1)": "[3-1], whose workers have unequal parts",
        r"equals_one_device\[3 workers": WORKERS,
    },
    "training/test_profiler.py": {
        r"same_weights\[(multi_worker_mirrored|parameter_server)-3": "[mirrored-3]; e2e/test_profile.py",
    },
    "training/test_plain_keras.py": {r"-(multi_worker_)?mirrored-2-keras3": "[…-one_device-1-keras3]"},
    "training/test_recipes.py": {
        r"one_device\[arrays-.*-keraslegacy": "[arrays-multi_worker_mirrored-2-keras3]",
        r"one_device\[parquet-(multi_worker_mirrored-3|mirrored-4)-keras3": "[arrays-…]; tests/data/sources",
        r"share_each_epoch\[parquet": "[arrays-3]",
        r"of_batches\[3": "[legacy]",
        r"says_so\[(mirrored|one_device)": WORKERS,
        r"says_so\[multi_worker_mirrored-2-keras3-batches of one size": "[…-batches of any size]",
    },
    "training/test_scripts.py": {
        r"losses_of_one_device\[(multi_worker_custom_loop|custom_training)\.py": "[multi_worker_keras.py]",
        r"accuracy_of_one_device\[all": "[chief-2]",
    },
    "training/test_slow_links.py": {
        r"\[(loss|two machines)": "[delay], [no slow link]; tests/stragglers",
    },
    "training/test_sparse_gradients.py": {
        r"\[.*-multi_worker_mirrored-[23]-keras3": DEVICES,
        r"\[(AMSGrad|AdamW|Adadelta|Adamax|RMSprop|Adafactor|clipvalue|clipnorm)-": (
            "Adam, Adagrad, Nadam, Ftrl, SGD, global_clipnorm, EMA: rows are summed before any of them"
        ),
    },
    "training/test_train_data.py": {r"are_named\[auto": "[file]"},
    "training/test_unusual_batches.py": {
        r"TestAsOnOneDevice::.*mirrored-3": WORKERS,
    },
    "training/test_variables.py": {
        r"\[(central_storage|parameter_server)-": "[mirrored-2-keras3], whose variables are of another class",
    },
    "training/test_virtual_replicas.py": {
        r"each_program.*\[3-(4-|6-(2 workers|4 workers|2 devices))": "[3-6-3 workers], parts of unequal size",
    },
    "training/test_worker_callbacks.py": {r"keras3_1\]": "[…-keras3_0], with data of another length"},
    "training/test_busy_times.py": {r"\[slow worker-train_steps": "[slow worker-fit]"},
}
