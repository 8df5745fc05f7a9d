# check: workers=2,3 keras=legacy,3 kill=25
"""Predicts the progress of diabetes from a table, with pandas and scikit-learn."""

import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(42)

data = load_diabetes(as_frame=True)
df = data.frame
df.to_csv("diabetes.csv", index=False)
df = pd.read_csv("diabetes.csv")
print(df.head())
print(df.describe().T[["mean", "std"]])

X = df.drop(columns="target")
y = df["target"]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=42)
scaler = StandardScaler()
X_train = scaler.fit_transform(X_train)
X_test = scaler.transform(X_test)

model = keras.Sequential(
    [
        keras.Input(shape=(X_train.shape[1],)),
        layers.Dense(32, activation="relu"),
        layers.Dense(16, activation="relu"),
        layers.Dense(1),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
model.summary()

history = model.fit(X_train, y_train, validation_split=0.2, epochs=5, batch_size=32)

loss, mae = model.evaluate(X_test, y_test)
print(f"Test MAE: {mae:.2f}")
y_pred = model.predict(X_test).flatten()
print("sklearn MAE:", mean_absolute_error(y_test, y_pred))

pd.DataFrame(history.history).to_csv("history.csv")
results = pd.DataFrame({"true": y_test, "predicted": y_pred})
results["error"] = (results["true"] - results["predicted"]).abs()
results.sort_values("error").to_csv("predictions.csv")
print(results.nlargest(3, "error"))
