"""Jobs that build no strategy: they get the run's, and read what they have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Cluster, TaskProcess, run_function
from tests.support.scripts import run_bare, run_script, write_script

pytestmark = pytest.mark.slow

TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
MODEL = """
import sys
import numpy as np
import tensorflow as tf
keras = tf.keras
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True) ** 2
def made():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model
model = made()
"""
FILES = f"""{MODEL}
aside = sys.argv[1]
paths = ("best.keras", f"{{aside}}/best.keras")
callbacks = [keras.callbacks.ModelCheckpoint(path, save_best_only=True) for path in paths]
class Save(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save(f"{{aside}}/own.keras")
callbacks += [Save(), keras.callbacks.CSVLogger("log.csv"), keras.callbacks.EarlyStopping(patience=1)]
model.fit(x, y, batch_size=16, epochs=3, validation_split=0.25, verbose=0, callbacks=callbacks)
model.save("last.keras")
model.save(f"{{aside}}/last.keras")
model.save_weights(f"{{aside}}/last.weights.h5")
for path in (*paths, "last.keras", f"{{aside}}/last.keras", f"{{aside}}/own.keras"):
    print("VALUES", *keras.models.load_model(path).evaluate(x, y, verbose=0))
another = made()
another.load_weights(f"{{aside}}/last.weights.h5")
print("VALUES", another.predict(x[:7], verbose=0).sum())
import json
import logging
import os
import pathlib
os.mkdir(f"{{aside}}/made")
pathlib.Path(f"{{aside}}/made/deeper").mkdir()
log = logging.getLogger("job")
log.addHandler(logging.FileHandler(f"{{aside}}/made/own.log"))
for name in ("new", "old"):
    with open(f"{{aside}}/made/{{name}}.csv", "w") as written:
        written.write("5\\n")
model.evaluate(x, y, verbose=0)
for fold in range(3):
    for name in ("folds", "made/new", "made/absent"):
        with open(f"{{aside}}/{{name}}.csv", "a") as appended:
            appended.write(f"{{fold}}\\n")
        print("VALUES", *map(float, open(f"{{aside}}/{{name}}.csv")))
    log.warning("%d", fold)
    with open(f"{{aside}}/made/{{fold}}.txt", "x") as created:
        created.write("text")
import shutil
import tarfile
import time
import raydist
for late in (True, False):
    for name in ("a", "b"):
        with open(f"{{aside}}/{{late}}-{{name}}.txt", "w") as written:
            written.write("1")
    os.makedirs(f"{{aside}}/made/{{late}}/deeper", exist_ok=True)
    model.evaluate(x, y, verbose=0)
    if (task := raydist.context()) and task.is_chief is late:
        time.sleep(0.5)
    place = pathlib.Path(f"{{aside}}/made/{{late}}")
    shutil.rmtree(place)
    place.mkdir()
    history = place / "history.txt"
    before = json.loads(history.read_text()) if history.exists() else []
    history.write_text(json.dumps([*before, 5]))
    with open(f"{{aside}}/{{late}}-a.txt", "r+") as edited:
        edited.write(str(1 + int(edited.read())))
    with open(place / "half.txt", "w") as half:
        half.write("6")
    os.replace(place / "half.txt", place / "whole.txt")
    os.remove(f"{{aside}}/{{late}}-b.txt")
    with tarfile.open(place / "all.tar", "a") as archive:
        archive.addfile(tarfile.TarInfo("one"))
    number = 0
    while late and os.path.exists(f"{{place}}/run{{number}}"):
        number += 1
    os.mkdir(f"{{place}}/run{{number}}")
    time.sleep(0.5)
    print("VALUES", number, open(place / "whole.txt").read())
print("VALUES", *[float(one) for line in open("log.csv").readlines()[1:] for one in line.split(",")])
"""


def values(*printed: str) -> list[float]:
    found = [
        float(one)
        for text in printed
        for line in text.splitlines()
        for one in line.partition("VALUES")[2].split()
    ]
    assert found
    return found


@pytest.mark.exhaustive(
    "3", covered_by="[legacy]; test_plain_scripts.py: saving_and_loading and others, with Keras 3"
)
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_job_reads_what_it_has_written_and_gets_the_values_of_plain_python(
    keras: str, tmp_path: Path
) -> None:
    for name in ("bare", "aside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "folds.csv").write_text("7\n")
    script = write_script(tmp_path, FILES)
    expected = values(*run_bare(script, tmp_path / "bare", workers=0, keras=keras))
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    for task in run_script(script, cluster, tmp_path / "aside"):
        assert task.values["failure"] is None, task.values["traceback"]
        assert values(task.printed) == pytest.approx(expected, rel=1e-5)
    places = (tmp_path / "aside", tmp_path / "bare")
    left, wanted = ({one.relative_to(place): one for one in place.rglob("*")} for place in places)
    assert sorted(left) == sorted(wanted)
    for name, path in wanted.items():
        if path.suffix in (".csv", ".txt", ".log", ".tar"):
            assert left[name].read_text() == path.read_text(), name


CALLS = f"""{MODEL}
def sums(**named):
    for name, found in named.items():
        print("VALUES", float(np.sum(found)))
for fold in range(2):
    keras.backend.clear_session()
    keras.utils.set_random_seed(fold)
    model = made()
    sums(loss=model.fit(x, y, batch_size=16, verbose=0).history["loss"])
    print("strategy", model.distribute_strategy.num_replicas_in_sync)
infer = tf.function(lambda given: model(given, training=False))
sums(inferred=infer(x))
model.export("exported")
loaded = tf.saved_model.load("exported")
sums(served=loaded.serve(x))
sums(lite=len(tf.lite.TFLiteConverter.from_keras_model(model).convert()) > 1000)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "saved", 2)
manager.save()
model.fit(x, y, verbose=0)
manager.checkpoint.restore(manager.latest_checkpoint)
sums(restored=model.predict(x, verbose=0))
with tf.GradientTape() as tape:
    given = tf.constant(x)
    tape.watch(given)
    found = model(given)
sums(looked=tape.gradient(found, given))
count, factor = tf.Variable(0), tf.Variable(2.0)
def counted():
    for _ in range(3):
        count.assign_add(1)
counted()
mapped = tf.data.Dataset.range(3).map(lambda one: tf.cast(one, tf.float32) * factor)
sums(count=count, mapped=list(mapped.as_numpy_iterator()))
model.set_weights([2 * one for one in model.get_weights()])
copied = keras.models.clone_model(model)
copied.set_weights(model.get_weights())
sums(copied=copied.predict(x, verbose=0), layers=len(model.layers), params=model.count_params())
kinds = keras.metrics.MeanIoU(num_classes=2)
for metric in (keras.metrics.Mean(), keras.metrics.Sum(), keras.metrics.AUC(), kinds):
    for _ in range(3):
        metric.update_state([0, 1, 1, 0], [0, 1, 0, 0]) if metric is kinds else metric.update_state(
            *([[0.0, 1.0, 1.0, 0.0]] * (2 if "AUC" in type(metric).__name__ else 1))
        )
    sums(metric=metric.result())
    metric.reset_state()
    sums(metric=metric.result())
on_read, summed = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
total = tf.Variable(0, synchronization=on_read, aggregation=summed)
total.assign(5)
total.assign_add(2)
total.assign_sub(1)
text = tf.Variable("a")
text.assign("bc")
sums(total=total, text=len(text.numpy()))
for start in range(0, 96, 32):
    sums(batch=model.train_on_batch(x[start : start + 32], y[start : start + 32], return_dict=True)["loss"])
sums(tested=model.test_on_batch(x, y, return_dict=True)["mae"], predicted=model.predict_on_batch(x[:3]))
"""


@pytest.mark.exhaustive(
    "legacy", covered_by="[3]; test_plain_scripts.py: outside_of_fit and others, with tf_keras"
)
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_what_else_a_program_calls_gives_the_values_of_plain_python(keras: str, tmp_path: Path) -> None:
    script = write_script(tmp_path, CALLS)
    expected = values(*run_bare(script, workers=0, keras=keras))
    for task in run_script(script, Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)):
        assert task.values["failure"] is None, task.values["traceback"]
        assert task.printed.count("strategy 2") == 2
        assert values(task.printed) == pytest.approx(expected, rel=1e-5)


GENERATORS = f"""{MODEL}
import itertools
import random
import time
import raydist
random.seed()
def batch(number):
    time.sleep(0.002 * random.random())
    rows = np.random.RandomState(number).normal(size=(16, 4)).astype("float32")
    return rows, rows.sum(axis=1, keepdims=True) ** 2
class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1
class Batches(keras.utils.Sequence):
    num_batches = 9
    def __init__(self):
        super().__init__()
        self.epoch, self.drawn = 0, 0
    def __len__(self):
        return 9
    def __getitem__(self, number):
        self.drawn += 1
        return batch(100 * self.epoch + number)
    def on_epoch_end(self):
        self.epoch = self.drawn
given, held_out, data = map(batch, itertools.count()), map(batch, itertools.count(1000)), Batches()
given, held_out = (one for one in given), (one for one in held_out)
is_plain = sys.argv[1] == "arrays"
def some(count, of):
    if not is_plain:
        return {{"x": of}}
    found = [next(of) for _ in range(count + 1)][:-1]  # Keras draws one more
    return dict(zip("xy", (np.concatenate(one) for one in zip(*found))), batch_size=16)
def steps(name, count):
    return {{}} if is_plain else {{name: count}}
for _ in range(3):
    fit = dict(some(7, given), **steps("steps_per_epoch", 7)), dict(shuffle=False, verbose=0)
    print("VALUES", *model.fit(**fit[0], **fit[1]).history["loss"])
    print("VALUES", *model.evaluate(**some(3, given), **steps("steps", 3), verbose=0))
    print("VALUES", float(model.predict(some(2, held_out)["x"], **steps("steps", 2), verbose=0).sum()))
if not is_plain:
    validation = dict(validation_data=held_out, validation_steps=4, verbose=0)
    model.fit(given, steps_per_epoch=5, epochs=4, callbacks=[Stop()], **validation)
    raydist.context().fit(model, given, steps_per_epoch=3, epochs=3, callbacks=[Stop()], **validation)
    print("EQUAL", next(given)[0].sum(), next(held_out)[0].sum())
    model.fit(data, steps_per_epoch=4, epochs=3, shuffle=False, verbose=0)
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 3
    model.fit(given, steps_per_epoch=50, callbacks=[Stop()], verbose=0)
    print("EQUAL", next(given)[0].sum(), data.drawn, data.epoch)
    print("EQUAL", [float(one.sum()) for one in model.get_weights()])
"""


@pytest.mark.exhaustive("multi_worker_mirrored-legacy", "mirrored-3", covered_by="the other two cases")
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "mirrored"])
def test_generator_that_several_calls_read_gives_the_same_batches_to_all(
    strategy: str, keras: str, tmp_path: Path
) -> None:
    script = write_script(tmp_path, GENERATORS)
    expected = values(*run_bare(script, "arrays", workers=0, keras=keras))
    size = {"devices": 2} if strategy == "mirrored" else {"workers": 2}
    found = []
    for task in run_script(script, Cluster(strategy=strategy, keras=keras, **size), "generator"):  # type: ignore[arg-type]
        assert task.values["failure"] is None, task.values["traceback"]
        assert values(task.printed) == pytest.approx(expected, rel=1e-5)
        found.append([line for line in task.printed.splitlines() if "EQUAL" in line])
    assert len(found[0]) == 3
    assert found == [found[0]] * len(found)


PROCESSES = """
import multiprocessing
import random
import time
import numpy as np
from joblib import Parallel, delayed
from tensorflow import keras
rng = np.random.default_rng()
x = rng.normal(size=(96, 4))[rng.permutation(96)]
def train(queue):
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    [loss] = model.fit(x, x.sum(axis=1), batch_size=16, verbose=0).history["loss"]
    model.save("child.keras")
    queue.put((loss, random.random(), np.random.default_rng().normal()))
found = []
for _ in range(2):
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=train, args=(queue,))
    process.start()
    found += queue.get()
    process.join()
assert len(set(found)) == 6
model = keras.models.load_model("child.keras")
print("VALUES", *found, *model.predict(x[:3], verbose=0).ravel())
history = model.fit(x, x.sum(axis=1), batch_size=16, validation_split=0.25, verbose=0).history
print("VALUES", *history["loss"], *history["val_loss"])
def late():
    time.sleep(1)
    print("late", flush=True)
multiprocessing.Process(target=late).start()
Parallel(n_jobs=2)(delayed(abs)(one) for one in range(4))
"""


@pytest.mark.exhaustive(
    "legacy", covered_by="[3]; test_plain_scripts.py: processes_of_its_own, with tf_keras"
)
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_job_without_a_seed_draws_alike_in_all_workers_and_in_the_processes_that_it_forks(
    keras: str, tmp_path: Path
) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    one, other = run_script(write_script(tmp_path, PROCESSES), cluster)
    assert values(one.printed) == values(other.printed)
    assert "late" in one.printed
    assert any("starts processes of its own: each of 2 workers" in note for note in one.values["notes"])
    assert not [note for note in one.values["notes"] if "begins with other values" in note]


def test_only_a_working_folder_of_its_own_keeps_a_tasks_files_apart() -> None:
    for task in run_function("tests.support.script_functions:shared_files", TWO_WORKERS):
        assert task.values == {
            "with": [False, False, False, False, True, True],
            "without": [True, True, False, False, True, True],
        }


def test_tensorflow_by_itself_loses_a_scope_and_reads_no_loaded_variables(tmp_path: Path) -> None:
    [task] = run_function(
        "tests.support.script_functions:scope_without_help",
        Cluster(strategy="mirrored", devices=2),
        folder=str(tmp_path),
    )
    assert task.values == {"kept": False, "told": True}


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "switched off": (
        f"{MODEL}\nmodel.fit(x, y, verbose=0)\n",
        {"default_strategy": False},
        "each of 2 workers trains one by itself; make it in the scope of the run's",
    ),
    "built while it runs": (
        f"{MODEL}\ngetattr(tf, 'distri' + 'bute').MirroredStrategy()\nmade().fit(x, y, verbose=0)\n",
        {},
        "main.py built a MirroredStrategy, with replicas in its own process: each of the 2 workers",
    ),
    "loop that is not seen": (
        f"{MODEL}\ntape = getattr(tf, 'Gradient' + 'Tape')()\n"
        "with tape:\n    loss = tf.reduce_sum(model(x))\nweights = model.trainable_variables\n"
        "getattr(model.optimizer, 'apply' + '_gradients')(zip(tape.gradient(loss, weights), weights))\n",
        {},
        "main.py fails in the run's strategy, which it has because it builds none: --no-default-strategy",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_job_that_the_default_does_not_fit_is_told(name: str, tmp_path: Path) -> None:
    source, options, sentence = OTHERS[name]
    tasks: list[TaskProcess] = run_script(write_script(tmp_path, source), TWO_WORKERS, job_options=options)
    for task in tasks:
        assert any(sentence in one for one in task.values["notes"]), task.values["notes"]
