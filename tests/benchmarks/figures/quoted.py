"""What pages other than figures.md say of figures, and numbers in all pages that only look measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# By page its texts that show figures of the record, with placeholders as in figures.md. Each is in the page
# once; `python -m tests.benchmarks --write` puts new figures into the pages.
QUOTED: Mapping[str, Sequence[str]] = {
    "README.md": (
        "| {recovery.killed_worker.ratio:.2f} of the time | Ray Train's",
        "| {input.ray_data_shuffled.ratio:.1f} times the rows/s |",
        "| {steps.keras_3.ratio:.1f} times the steps/s (Keras 3) |",
    ),
    "scaling.md": (
        "takes a status of each task | {scale.all_statuses_1000} ms | {scale.all_statuses_10000} ms |",
        "events included | {scale.cpu_a_minute_1000:.1f} s | {scale.cpu_a_minute_10000} s |",
        "replaced every 3 s | {scale.record_1000:.1f} MB | {scale.record_10000:.1f} MB |",
        "as processes | {scale.plan_1000:.1f}, {scale.status_1000:.1f}, {scale.list_1000:.1f}, "
        "{scale.report_1000:.1f} s | {scale.plan_10000:.1f}, {scale.status_10000:.1f}, "
        "{scale.list_10000:.1f}, {scale.report_10000:.1f} s |",
        "took {scale.agents_start:.0f} s to start and {scale.agents_stop:.1f} s to stop",
        "A start takes {scale.agents_start_each:.1f} s of CPU time",
        "was noticed after {scale.lost_node_noticed:.1f} s",
        "All 40 ran again after {scale.lost_node_again:.0f} s",
    ),
    "input-data.md": (
        "places of all row groups | {large_data.parquet_source_memory:.0f} MB |",
        "the order of an epoch | {large_data.parquet_order_memory:.0f} MB |",
        "from the source to the first batch | {large_data.parquet_first:.1f} s |",
        "steps of an epoch | {large_data.parquet_resumed.min:.1f} to "
        "{large_data.parquet_resumed.max:.1f} s |",
        "row groups of 2 MB | {remote.parquet_store.ratio:.2f} | {remote.parquet_files.ratio:.2f} |",
        "| TFRecord | {remote.tfrecord_store.ratio:.2f} | {remote.tfrecord_files.ratio:.2f} |",
        "5 KB each | {remote.images_store.ratio:.2f} | {remote.images_files.ratio:.2f} |",
    ),
    "parameter-servers.md": (
        "trains at {large_embedding.tf_keras_adagrad_10000000.ratio:.2f} times the steps/s",
        "memory came to {large_embedding.tf_keras_adagrad_10000000_chief:,.0f} MB in that run",
    ),
    "on-a-cluster.md": ("some {launch.kept_warm:.0f} MB of memory (PSS)",),
}

# Limits that raydist sets, wherever they are named.
LIMITS = ("100 MB", "10 MB", "64 MB")

# By page its texts whose numbers look measured, each once, and what they are.
NOT_MEASURED: Mapping[str, Mapping[str, str]] = {
    "deploying.md": {"less than 12.5 MB/s": "a threshold of `raydist doctor`"},
    "failures.md": {"at most 3% of the time": "a setting"},
    "figures.md": {
        "TensorFlow 2.21, Keras 3.15 and Ray 2.60": "versions",
        "a worker killed every 15 s, steps of 20 ms": "what the benchmark sets",
        "a worker stopped for 20 s": "what the benchmark sets",
        **dict.fromkeys(("| 2.99 |", "| 1.64 |", "| 1.34 |", "| 1.04 |"), "by tests/data/test_mixing.py"),
    },
    "input-data.md": {
        "more than 20 % of the time": "a threshold",
        "files of at least 128 MB": "advice",
        "latency of 50 ms for each request": "what the benchmark sets",
    },
    "versions.md": {"as many as take about 0.1 s": "a setting"},
    "page.md": {
        "more than 1.5 times the median": "a threshold",
        "at least 30% of each step": "a threshold",
        "at least 3 times their median, and at least 5 ms longer": "a threshold",
        "at least 1% of what is sent, and at least 3 times as much": "a threshold",
        "at least 5 ms or at least 1% is retransmitted": "a threshold",
    },
    "scaling.md": {
        "efficiency is at least 80%": "a threshold",
        "wait for data is at least 20% and": "a threshold",
        "at least 20% of steps below 20 ms": "a threshold",
        "at least 20% of longer steps": "a threshold",
        "has trained for 10 s": "a setting",
        "measures for about 30 s": "a setting",
        "make that 1.25 times shorter": "a threshold",
    },
}
