# check: workers=2 keras=legacy,3
"""Trains models in processes of its own, as people do to free memory or to try settings in parallel."""

import multiprocessing

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import cross_val_score
from tensorflow import keras


def made(units, seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def rows():
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    return x, x.sum(axis=1)


def train(units):
    model = made(units, units)
    model.fit(*rows(), verbose=0)
    return units, float(model.evaluate(*rows(), verbose=0))


def put(units, queue):
    queue.put(train(units))


class Regressor(RegressorMixin, BaseEstimator):
    def fit(self, x, y):
        self.model_ = made(3, 1)
        self.model_.fit(x, y, epochs=2, verbose=0)
        return self

    def predict(self, x):
        return self.model_.predict(x, verbose=0).ravel()


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print("pool", pool.map(train, [2, 3, 4]))
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=put, args=(5, queue))
    process.start()
    print("process", queue.get())
    process.join()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned", pool.map(train, [7]))
    print("scores", cross_val_score(Regressor(), *rows(), cv=3, n_jobs=2))
    model = made(3, 1)
    print("itself", model.fit(*rows(), epochs=2, verbose=0).history["loss"])
