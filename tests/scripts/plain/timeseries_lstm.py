# check: workers=2,3 keras=3,legacy rtol=1e-4 kill=30
"""Forecasts a series from windows of it, with an LSTM, and compares with a naive forecast."""

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(1)
time = np.arange(1200)
series = np.sin(time / 20) + 0.3 * np.sin(time / 3) + np.random.default_rng(0).normal(0, 0.05, len(time))
series = series.astype("float32")
split = 900
mean, std = series[:split].mean(), series[:split].std()
scaled = (series - mean) / std

window = 24
train = keras.utils.timeseries_dataset_from_array(
    scaled[: split - window, None], scaled[window:split], window, batch_size=64, shuffle=True, seed=5
)
test = keras.utils.timeseries_dataset_from_array(
    scaled[split:-window, None], scaled[split + window :], sequence_length=window, batch_size=64
)
for batch in train.take(1):
    inputs, targets = batch
print("Input shape:", inputs.numpy().shape, "Target shape:", targets.numpy().shape)

inputs = keras.layers.Input(shape=(window, 1))
lstm_out = keras.layers.LSTM(16)(inputs)
outputs = keras.layers.Dense(1)(lstm_out)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
model.summary()

es_callback = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=2)
checkpoint = keras.callbacks.ModelCheckpoint(
    monitor="val_loss", filepath="best.weights.h5", verbose=1, save_weights_only=True, save_best_only=True
)
history = model.fit(train, epochs=4, validation_data=test, callbacks=[es_callback, checkpoint])
print(history.history)


class Last(keras.Model):
    def call(self, x):
        return x[:, -1]


baseline = Last()
baseline.compile(loss="mse")
print("baseline", baseline.evaluate(test, verbose=0))
model.load_weights("best.weights.h5")
forecast = model.predict(test).squeeze() * std + mean
truth = series[split + window :][: len(forecast)]
print("LSTM", float(np.abs(forecast - truth).mean()))
print("naive", float(np.abs(series[split + window - 1 : -1][: len(forecast)] - truth).mean()))
np.save("forecast.npy", forecast)
