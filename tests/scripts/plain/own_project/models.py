from tensorflow import keras

from .settings import DEFAULTS


def build_model(num_features, num_classes, units=DEFAULTS["units"]):
    inputs = keras.Input(shape=(num_features,), name="features")
    x = keras.layers.Dense(units, activation="relu", kernel_regularizer=keras.regularizers.l2(1e-3))(inputs)
    outputs = keras.layers.Dense(num_classes, activation="softmax", name="classes")(x)
    return keras.Model(inputs, outputs, name="classifier")
