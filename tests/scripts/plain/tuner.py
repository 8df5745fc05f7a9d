# check: workers=2 keras=3 rtol=1e-3 libraries=yes
"""A search by keras-tuner, inside of the script."""

import tempfile

import keras
import keras_tuner
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

keras.utils.set_random_seed(3)
x, y = load_wine(return_X_y=True)
x_train, x_val, y_train, y_val = train_test_split(scale(x), y, random_state=0)


def build_model(hp):
    model = keras.Sequential([keras.Input((13,))])
    for i in range(hp.Int("layers", 1, 2)):
        model.add(keras.layers.Dense(hp.Choice(f"units_{i}", [8, 16]), activation="relu"))
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("rate", 1e-3, 1e-1, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


tuner = keras_tuner.RandomSearch(
    build_model,
    objective="val_accuracy",
    max_trials=3,
    seed=1,
    directory=tempfile.mkdtemp(),
    project_name="wine",
)
tuner.search(x_train, y_train, epochs=2, batch_size=32, validation_data=(x_val, y_val), verbose=0)
best = tuner.get_best_hyperparameters()[0]
print("best", best.get("layers"), best.get("units_0"), best.get("rate"))
print("loaded", *tuner.get_best_models()[0].evaluate(x_val, y_val, verbose=0))
model = tuner.hypermodel.build(best)
model.fit(x_train, y_train, epochs=3, batch_size=32, verbose=0)
print("trained", *model.evaluate(x_val, y_val, verbose=0))
