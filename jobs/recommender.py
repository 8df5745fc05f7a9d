"""Matrix factorisation of ratings: two embedding tables, which parameter servers can share out.

raydist submit jobs/recommender.py
raydist submit jobs/recommender.py --strategy parameter_server --workers 3 --ps 2 --partitioner fixed_shards:2
raydist submit jobs/recommender.py -p data_dir=/data/ml-25m -p dimensions=16

`data_dir` is a folder with MovieLens's `ratings.csv`. Without it the ratings are generated from known
factors and known noise, so that the least error that any model can reach is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

import raydist

UNSEEN = 0  # the row of the tables for ids without a training rating
NOISE = 0.5  # the standard deviation of what no model can predict in generated ratings


@raydist.job(
    params={
        "epochs": 6,
        "batch_size": 500,
        "learning_rate": 0.2,
        "dimensions": 4,
        "num_ratings": 100_000,
        "data_dir": "",
    },
)
def train(ctx: raydist.TrainContext):
    import tensorflow as tf

    params = ctx.params
    ratings = load_ratings(ctx, params["data_dir"], num_ratings=params["num_ratings"])
    training, validation = split(ratings)
    users, movies = np.unique(training.users), np.unique(training.movies)
    batch_size = min(params["batch_size"], len(training))

    def make_dataset(part):
        rows = {"user": rows_of(part.users, users), "movie": rows_of(part.movies, movies)}
        return tf.data.Dataset.from_tensor_slices((rows, part.stars))

    def make_training():
        data = make_dataset(training).shuffle(len(training), seed=1)
        return data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def make_validation():
        return make_dataset(validation).batch(batch_size)

    with ctx.strategy.scope():
        model = build_model(
            num_users=len(users),
            num_movies=len(movies),
            dimensions=params["dimensions"],
            mean=training.stars.mean(),
        )
        model.compile(
            # Safe where workers interleave: Adam divides one average by the root of another, and a worker
            # that reads a row between the first update of each takes a step thousands of times too long.
            optimizer=tf.keras.optimizers.Adagrad(params["learning_rate"], initial_accumulator_value=0.0),
            loss="mse",
            metrics=[tf.keras.metrics.RootMeanSquaredError(name="rmse")],
        )
    history = ctx.fit(
        model,
        make_training,
        epochs=params["epochs"],
        steps_per_epoch=len(training) // batch_size,
        validation_data=make_validation,
    ).history
    if ctx.is_chief and not params["data_dir"] and "val_rmse" in history:
        ctx.note(f"validation RMSE is {history['val_rmse'][-1]:.3f}, where {NOISE} is the least possible")


def build_model(*, num_users, num_movies, dimensions, mean):
    """Returns a model of mean + user's bias + movie's bias + user's factors · movie's factors."""
    import tensorflow as tf

    layers = tf.keras.layers
    user, movie = (tf.keras.Input((), dtype="int32", name=name) for name in ("user", "movie"))

    def look_up(row, num_rows):
        factors = layers.Embedding(1 + num_rows, dimensions)(row)
        return factors, layers.Embedding(1 + num_rows, 1, embeddings_initializer="zeros")(row)

    user_factors, user_bias = look_up(user, num_users)
    movie_factors, movie_bias = look_up(movie, num_movies)
    product = layers.Dot(axes=1)([user_factors, movie_factors])
    deviation = layers.Add()([product, user_bias, movie_bias])
    stars = layers.Rescaling(1.0, offset=float(mean))(deviation)
    return tf.keras.Model({"user": user, "movie": movie}, stars)


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Who gave which movie how many stars: three arrays of one length, with ids as they come."""

    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray

    def __len__(self):
        return len(self.stars)

    def __getitem__(self, index):
        return Ratings(users=self.users[index], movies=self.movies[index], stars=self.stars[index])


def rows_of(ids, known):
    """Returns the row of each id in a table: its place in the sorted `known` from 1 on, else UNSEEN."""
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[places] == ids, 1 + places, UNSEEN).astype("int32")


def split(ratings):
    """Returns nine tenths for training and one for validation, the same in every task and run."""
    order = np.random.default_rng(0).permutation(len(ratings))
    num_validation = max(1, len(ratings) // 10)
    return ratings[order[num_validation:]], ratings[order[:num_validation]]


def load_ratings(ctx, data_dir, *, num_ratings):
    if data_dir:
        return read_movielens(data_dir)
    if num_ratings < 1000:
        raise raydist.SpecError(f"param num_ratings is {num_ratings}; give 1000 or more")
    ctx.note(
        f"data: {num_ratings} generated ratings, because no data_dir was given; "
        f"their noise makes {NOISE} the least RMSE that any model can reach"
    )
    return generate_ratings(num_ratings)


def read_movielens(data_dir):
    path = Path(data_dir) / "ratings.csv"
    if not path.is_file():
        raise raydist.SpecError(
            f"param data_dir is {data_dir!r}, which has no ratings.csv; "
            "unpack an archive of https://grouplens.org/datasets/movielens there"
        )
    types = {"userId": pa.int64(), "movieId": pa.int64(), "rating": pa.float32()}
    options = csv.ConvertOptions(include_columns=list(types), column_types=types)
    try:
        table = csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise raydist.SpecError(f"{path} cannot be read as userId,movieId,rating,…: {error}") from error
    users, movies, stars = (table[name].to_numpy() for name in types)
    for name, column in zip(types, (users, movies, stars), strict=True):
        if not np.isfinite(column).all():  # what is empty in the file is NaN here
            row = 1 + int(np.argmin(np.isfinite(column)))
            raise raydist.SpecError(f"{path}: rating {row} has no finite number as its {name}")
    if len(stars) < 2:
        raise raydist.SpecError(f"{path} holds {len(stars)} ratings; training and validation need some each")
    return Ratings(users=users, movies=movies, stars=stars)


def generate_ratings(num_ratings, *, seed=0):
    """Returns ratings as a service has them: few are popular, most are not, ids are large and sparse."""
    rng = np.random.default_rng(seed)
    who, user_factors, user_bias, user_ids = _draw(rng, num_ratings // 200, num_ratings)
    what, movie_factors, movie_bias, movie_ids = _draw(rng, num_ratings // 300, num_ratings)
    product = (user_factors[who] * movie_factors[what]).sum(axis=1)
    stars = 3.5 + user_bias[who] + movie_bias[what] + product + rng.normal(0, NOISE, num_ratings)
    return Ratings(users=user_ids[who], movies=movie_ids[what], stars=stars.astype("float32"))


def _draw(rng, num_rows, num_ratings):
    """Returns the row that each rating is of, by Zipf's law, and each row's factors, bias and id."""
    popularity = 1 / np.arange(10, 10 + num_rows) ** 0.8
    rows = rng.choice(num_rows, size=num_ratings, p=popularity / popularity.sum())
    factors, bias = rng.normal(0, 0.6, (num_rows, 4)), rng.normal(0, 0.3, num_rows)
    return rows, factors, bias, rng.integers(1 << 40, size=num_rows)
