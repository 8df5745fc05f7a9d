# check: workers=2 keras=legacy,3 rtol=1e-4 kill=70
"""Cross-validation: four models one after another."""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold
from tensorflow import keras

keras.utils.set_random_seed(5)
x, y = load_diabetes(return_X_y=True)
x, y = x.astype("float32"), (y / 100.0).astype("float32")


def create_model():
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(x.shape[1],)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return model


scores = []
for fold, (train, test) in enumerate(KFold(n_splits=4, shuffle=True, random_state=1).split(x)):
    keras.backend.clear_session()
    model = create_model()
    model.fit(x[train], y[train], epochs=3, batch_size=32, verbose=0)
    loss, mae = model.evaluate(x[test], y[test], verbose=0)
    scores.append(mae)
    print("fold", fold, loss, mae)
print("mean", np.mean(scores), np.std(scores))
