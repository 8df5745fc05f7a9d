"""`raydist predict` against a map_batches written by hand: rows/s from Parquet to Parquet.

    python -m tests.benchmarks.predict [--rows 2000000] [--rounds 3] [--workers 2]

Both have as many actors on the same Ray, call the same SavedModel with the same batches, and write the same
columns. The one by hand is read_parquet, map_batches with a class, and write_parquet. They take turns. Each
time includes the start of the actors and TensorFlow's import there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

NUM_COLUMNS, ROWS_PER_FILE, GROUP_ROWS, BATCH_SIZE = 16, 200_000, 50_000, 4096
FEATURES = [f"f{number}" for number in range(NUM_COLUMNS)]


def train(ctx) -> None:
    import tensorflow as tf

    with ctx.strategy.scope():
        dense = [tf.keras.layers.Dense(128, activation="relu") for _ in range(2)]
        model = tf.keras.Sequential([tf.keras.Input([NUM_COLUMNS]), *dense, tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones([8, NUM_COLUMNS]), tf.ones([8, 1])))
    ctx.fit(model, data, epochs=1)


class ByHand:
    """What Ray Data's guide of batch inference has."""

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self._loaded = tf.saved_model.load(folder)

    def __call__(self, batch):
        import numpy as np
        import tensorflow as tf

        values = np.stack([batch[name] for name in FEATURES], axis=-1)
        return {"id": batch["id"], "prediction": self._loaded.serve(tf.constant(values)).numpy()[:, 0]}


def write(folder: Path, num_rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for first in range(0, num_rows, ROWS_PER_FILE):
        ids = np.arange(first, min(first + ROWS_PER_FILE, num_rows))
        columns = {name: rng.normal(size=len(ids)).astype("float32") for name in FEATURES}
        table = pa.table({"id": ids, **columns})
        pq.write_table(table, folder / f"{first:09}.parquet", row_group_size=GROUP_ROWS)


def main() -> None:
    import pyarrow.parquet as pq
    import ray

    import raydist
    from raydist.inference.predict import Prediction
    from raydist.storage.run_storage import open_run
    from tests.benchmarks.figures.printing import figure

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    num_rows, workers = arguments.rows, arguments.workers
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp") as name:
        data, out = Path(name) / "data", Path(name) / "out"
        data.mkdir()
        write(data, num_rows)
        raydist.run(train, name="run", workers=1, storage=f"{name}/runs")
        run = open_run(f"{name}/runs", run="run")
        model = run.local_path(run.exported_saved_model)
        ray.init(
            "local", num_cpus=workers + 2, include_dashboard=False, log_to_driver=False, logging_level="error"
        )
        ray.data.DataContext.get_current().enable_progress_bars = False

        def with_raydist() -> None:
            Prediction(
                run=run,
                data=str(data),
                out=str(out),
                features=tuple(FEATURES),
                workers=workers,
                batch_size=BATCH_SIZE,
            ).execute()

        def by_hand() -> None:
            blocks = max(workers, num_rows // GROUP_ROWS)  # else all may be one, for one actor
            ray.data.read_parquet(str(data), override_num_blocks=blocks).map_batches(
                ByHand,
                fn_constructor_args=(str(model),),
                batch_size=BATCH_SIZE,
                compute=ray.data.ActorPoolStrategy(size=workers),
            ).write_parquet(str(out))

        rates: dict[str, list[float]] = {"raydist": [], "by hand": []}
        for _ in range(arguments.rounds):
            for told, do in (("raydist", with_raydist), ("by hand", by_hand)):
                began_at_s = time.perf_counter()
                do()
                rates[told].append(num_rows / (time.perf_counter() - began_at_s))
                found = pq.ParquetDataset(out).read(columns=["id"])
                assert found["id"].to_numpy().sum() == num_rows * (num_rows - 1) // 2, told
                shutil.rmtree(out)
                print(f"{told}: {rates[told][-1]:,.0f} rows/s", flush=True)
        ray.shutdown()
    figure(f"rows_{num_rows}", rates["raydist"], "rows/s", against=("by hand", rates["by hand"]))


if __name__ == "__main__":
    main()
