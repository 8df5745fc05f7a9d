# check: workers=2 keras=3 rtol=1e-3 kill=20
"""Keras models in scikit-learn: cross_val_score, a pipeline and a grid search."""

import keras
import numpy as np
from keras.wrappers import SKLearnClassifier
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

keras.utils.set_random_seed(3)
x, y = load_iris(return_X_y=True)


def build(X, y, units=8, rate=0.01):
    inputs = keras.Input((X.shape[1],))
    h = keras.layers.Dense(units, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(h))
    model.compile(keras.optimizers.Adam(rate), loss="categorical_crossentropy", metrics=["accuracy"])
    return model


classifier = SKLearnClassifier(build, fit_kwargs={"epochs": 2, "batch_size": 30, "verbose": 0})
pipeline = make_pipeline(StandardScaler(), classifier)
scores = cross_val_score(pipeline, x, y, cv=3)
print("scores", *scores)
grid = GridSearchCV(
    SKLearnClassifier(build, fit_kwargs={"epochs": 2, "verbose": 0}),
    {"model_kwargs": [{"units": 4}, {"units": 16}]},
    cv=2,
    n_jobs=1,
)
grid.fit(x, y)
print("best", grid.best_score_, grid.best_params_["model_kwargs"]["units"])
print("right", int(np.sum(grid.predict(x) == y)))
