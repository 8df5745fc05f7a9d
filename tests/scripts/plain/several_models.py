# check: workers=2,3 keras=3,legacy rtol=1e-4 kill=140
"""Several models in one script, made in functions, and one that is trained on another's predictions."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from tensorflow import keras

keras.utils.set_random_seed(42)
data = load_breast_cancer()
x_train, x_test, y_train, y_test = train_test_split(data.data, data.target, random_state=0)
scaler = StandardScaler().fit(x_train)
x_train, x_test = scaler.transform(x_train), scaler.transform(x_test)


def build_mlp(units, rate=1e-2):
    model = keras.Sequential()
    model.add(keras.layers.Dense(units, activation="relu"))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="binary_crossentropy", metrics=["AUC"])
    return model


def build_autoencoder(dim):
    inputs = keras.Input((dim,))
    code = keras.layers.Dense(4, activation="tanh", name="code")(inputs)
    autoencoder = keras.Model(inputs, keras.layers.Dense(dim)(code))
    autoencoder.compile("rmsprop", "mse")
    return autoencoder, keras.Model(inputs, code)


def main():
    models = {f"mlp{units}": build_mlp(units) for units in (4, 8, 16)}
    scores = {}
    for name, model in models.items():
        model.fit(x_train, y_train, epochs=3, batch_size=32, verbose=0, shuffle=False)
        scores[name] = roc_auc_score(y_test, model.predict(x_test, verbose=0)[:, 0])
        print("auc", scores[name])
    best = max(scores, key=scores.get)
    print("best", int(best.removeprefix("mlp")))

    autoencoder, encoder = build_autoencoder(x_train.shape[1])
    autoencoder.fit(x_train, x_train, epochs=3, batch_size=50, shuffle=False, verbose=0)
    codes = encoder.predict(x_train, verbose=0)
    on_codes = LogisticRegression().fit(codes, y_train)
    print("on codes", on_codes.score(encoder.predict(x_test, verbose=0), y_test))

    student = build_mlp(4)
    soft = models[best].predict(x_train, verbose=0)
    student.fit(x_train, soft, epochs=2, batch_size=64, shuffle=False, verbose=0)
    print("student", *student.evaluate(x_test, y_test, verbose=0))
    average = np.mean([one.predict(x_test, verbose=0) for one in models.values()], axis=0)
    print("ensemble", float(np.mean((average[:, 0] > 0.5) == y_test)))


if __name__ == "__main__":
    main()
