"""Sentiment of film reviews: an embedding, its average over the words, two dense layers.

raydist submit jobs/imdb.py
raydist submit jobs/imdb.py --strategy parameter_server --workers 3 --ps 2
raydist submit jobs/imdb.py -p data_dir=/data

`data` is `imdb`, `generated` (from a small grammar, with known label noise), or `auto`: IMDb where every
task has it, else generated. IMDb is `aclImdb_v1.tar.gz` of https://ai.stanford.edu/~amaas/data/sentiment,
the `aclImdb` that it unpacks to, or Keras's `imdb.npz`, in `data_dir` or in Keras's cache.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

import raydist

ARCHIVE = "aclImdb_v1.tar.gz"
REVIEW = re.compile(r"(train|test)/(neg|pos)/[^/]+\.txt$")
WORD = re.compile(r"(?:not |never )?[a-z']+")  # "not good" is a word of its own: an average has no order
PADDING, UNKNOWN = 0, 1
LABEL_NOISE = 0.05  # the part of generated reviews whose label is the opposite of what they say


@raydist.job(
    params={
        "epochs": 6,
        "batch_size": 100,
        "learning_rate": 0.03,
        "vocabulary_size": 10_000,
        "length": 200,
        "dimensions": 16,
        "data": "auto",
        "data_dir": "",
        "num_reviews": 12_000,
    },
)
def train(ctx: raydist.TrainContext):
    import tensorflow as tf

    params = ctx.params
    training, validation = load_data(ctx, params)
    batch_size = min(params["batch_size"], len(training[1]))

    def make_training():
        data = tf.data.Dataset.from_tensor_slices(training).shuffle(len(training[1]), seed=1)
        return data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def make_validation():
        return tf.data.Dataset.from_tensor_slices(validation).batch(batch_size)

    with ctx.strategy.scope():
        model = build_model(params["vocabulary_size"], params["length"], params["dimensions"])
        model.compile(
            # Safe where workers interleave: Adam divides one average by the root of another, and a worker
            # that reads a row between the first update of each takes a step thousands of times too long.
            optimizer=tf.keras.optimizers.Adagrad(params["learning_rate"], initial_accumulator_value=0.0),
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )
    ctx.fit(
        model,
        make_training,
        epochs=params["epochs"],
        steps_per_epoch=len(training[1]) // batch_size,
        validation_data=make_validation,
    )


def build_model(vocabulary_size, length, dimensions):
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((length,), dtype="int32"),
            layers.Embedding(vocabulary_size, dimensions, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(16, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )


def load_data(ctx, params):
    """Returns word numbers `[n, length]` and labels `[n, 1]` for training, and the same for validation."""
    parts = load_reviews(ctx, params)
    vocabulary = vocabulary_of(parts["train"][0], size=params["vocabulary_size"])
    return [
        (encode(reviews, vocabulary, length=params["length"]), np.array(labels, "float32")[:, np.newaxis])
        for reviews, labels in (parts["train"], parts["test"])
    ]


def load_reviews(ctx, params):
    """Returns `{"train": (reviews, labels), "test": (reviews, labels)}`; a review is a list of words."""
    data = params["data"]
    if data not in ("auto", "imdb", "generated"):
        raise raydist.SpecError(f"param data is {data!r}; give auto, imdb or generated")
    folder = Path(params["data_dir"] or keras_cache())
    path = find_reviews(folder)
    if path is None and (data == "imdb" or (data == "auto" and params["data_dir"])):
        raise raydist.SpecError(
            f"{folder} has no aclImdb, {ARCHIVE} or imdb.npz; name the folder in data_dir"
        )
    reason = "as asked"
    if data == "auto" and not all_tasks_have(ctx, path is not None):
        data, reason = "generated", "because not every task has IMDb's"
    if data == "generated":
        parts = generate_reviews(params["num_reviews"])
        ctx.note(
            f"data: {params['num_reviews']} generated reviews, {reason}; {LABEL_NOISE:.0%} of them have "
            f"a wrong label, so the best accuracy is about {1 - LABEL_NOISE}"
        )
    else:
        parts = read_reviews(path)
        ctx.note(f"data: the IMDb reviews in {path}")
    return parts


def vocabulary_of(reviews, *, size):
    """Returns the numbers of the most frequent words; PADDING and UNKNOWN are the first two of `size`."""
    counts = Counter(word for review in reviews for word in review)
    return {word: number for number, (word, _) in enumerate(counts.most_common(size - 2), start=2)}


def encode(reviews, vocabulary, *, length):
    """Returns the numbers of each review's first `length` words, filled up with PADDING."""
    encoded = np.full((len(reviews), length), PADDING, "int32")
    for row, review in zip(encoded, reviews, strict=True):
        # A review without a word would be all padding, and its average 0 / 0.
        numbers = [vocabulary.get(word, UNKNOWN) for word in review[:length]] or [UNKNOWN]
        row[: len(numbers)] = numbers
    return encoded


def words_of(text):
    # Interned, as the millions of words are few different ones.
    return [sys.intern(word) for word in WORD.findall(text.lower().replace("<br />", " "))]


def keras_cache():
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets"


def find_reviews(parent):
    """Returns the path of the reviews in a folder, unpacked or not; None where it has none."""
    for folder in (parent / "aclImdb", parent):
        if (folder / "train").is_dir():
            return folder
    return next((parent / name for name in (ARCHIVE, "imdb.npz") if (parent / name).is_file()), None)


def all_tasks_have(ctx, has):
    """Agrees by one all-gather, so that the tasks never train on different data."""
    if ctx.coordinator is not None:
        return has  # only the chief's data count
    import tensorflow as tf

    @tf.function
    def gather():
        def one():
            return tf.distribute.get_replica_context().all_gather(tf.constant([int(has)]), axis=0)

        return ctx.strategy.experimental_local_results(ctx.strategy.run(one))[0]

    return bool(gather().numpy().all())


def read_reviews(path):
    """Returns what `load_reviews` does, of files."""
    try:
        parts = read_npz(path) if path.suffix == ".npz" else read_texts(path)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise raydist.SpecError(f"{path} cannot be read: {error}") from error
    for part, (_, labels) in parts.items():
        if set(labels) != {0, 1}:
            raise raydist.SpecError(
                f"{path} has the labels {sorted(set(labels))} in {part}; both 0 (negative) and 1 are needed"
            )
    return parts


def read_texts(path):
    parts = {"train": ([], []), "test": ([], [])}
    for name, content in files_of(path):
        part, sentiment = REVIEW.search(name).groups()
        reviews, labels = parts[part]
        reviews.append(words_of(content.decode("utf-8", errors="replace")))
        labels.append(int(sentiment == "pos"))
    return parts


def files_of(path):
    """Yields name and content of each labelled review in a folder or an archive."""
    if path.is_dir():
        for file in sorted(path.glob("*/*/*.txt")):
            if REVIEW.search(file.as_posix()):
                yield file.as_posix(), file.read_bytes()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and REVIEW.search(member.name):
                yield member.name, archive.extractfile(member).read()


def read_npz(path):
    """Reads Keras's file, in which each word is a number already."""
    parts = {}
    try:
        # Keras keeps lists in object arrays, which are pickles.
        with path.open("rb") as file, np.load(file, allow_pickle=True) as arrays:
            for part in ("train", "test"):
                reviews = [list(review) for review in arrays[f"x_{part}"]]
                parts[part] = (reviews, arrays[f"y_{part}"].tolist())
    except (KeyError, TypeError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise raydist.SpecError(f"{path} is not Keras's imdb.npz: {error}") from error
    for part, (reviews, labels) in parts.items():
        if len(reviews) != len(labels):
            raise raydist.SpecError(f"{path} has {len(reviews)} reviews and {len(labels)} labels in {part}")
    return parts


GOOD = ["brilliant", "charming", "clever", "delightful", "funny", "gripping", "honest", "moving", "superb"]
BAD = ["awful", "boring", "clumsy", "dull", "flat", "lazy", "predictable", "tedious", "ugly"]
THINGS = ["acting", "camera", "cast", "dialogue", "ending", "humour", "music", "plot", "script", "story"]
TIMES = ["at home", "in a small cinema", "last week", "on a plane", "on a rainy sunday", "with friends"]


def generate_reviews(num_reviews, *, seed=0):
    """Returns reviews of three to seven opinions; most of them decide, but for LABEL_NOISE of the labels."""
    if num_reviews < 100:
        raise raydist.SpecError(f"param num_reviews is {num_reviews}; give 100 or more")
    rng = np.random.default_rng(seed)
    reviews, labels = [], []
    for _ in range(num_reviews):
        is_good = rng.random(rng.choice([3, 5, 7])) < 0.5
        sentences = [_opinion(rng, good) for good in is_good] + [f"we saw it {rng.choice(TIMES)}"] * 2
        rng.shuffle(sentences)
        reviews.append(words_of(". ".join(sentences)))
        is_positive = is_good.mean() > 0.5
        labels.append(int(is_positive != (rng.random() < LABEL_NOISE)))
    num_test = num_reviews // 6
    return {"train": (reviews[num_test:], labels[num_test:]), "test": (reviews[:num_test], labels[:num_test])}


def _opinion(rng, is_good):
    is_negated = rng.random() < 0.3
    adjective = rng.choice(GOOD if is_good != is_negated else BAD)
    return f"the {rng.choice(THINGS)} was {'not ' if is_negated else ''}{adjective}"
