# check: workers=2 keras=3 rtol=1e-3 libraries=yes
"""The same by way of scikeras."""

from keras import Input, Sequential, layers, utils
from scikeras.wrappers import KerasClassifier, KerasRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score

utils.set_random_seed(0)


def classifier(units=8):
    model = Sequential([Input((4,)), layers.Dense(units, activation="relu"), layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return model


def regressor():
    model = Sequential([Input((10,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
    model.compile(loss="mse", optimizer="adam")
    return model


x, y = load_iris(return_X_y=True)
search = GridSearchCV(
    KerasClassifier(model=classifier, epochs=2, batch_size=16, verbose=0, random_state=1),
    {"model__units": [4, 8], "optimizer__learning_rate": [0.01]},
    cv=2,
)
search.fit(x, y)
print("search", search.best_score_, search.best_params_["model__units"])
x, y = load_diabetes(return_X_y=True)
scores = cross_val_score(KerasRegressor(model=regressor, epochs=2, verbose=0, random_state=1), x, y, cv=2)
print("scores", *scores)
