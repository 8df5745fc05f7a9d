"""The Vision Transformer with the patches of Keras 3: `keras.ops`, and the whole of the batch's shape."""

from __future__ import annotations

from typing import Any

from tests.programs import vision_transformer
from tests.programs.outcome import Outcome
from tests.programs.vision_transformer import keras, layers


class Patches(layers.Layer):
    def __init__(self, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size

    def call(self, images: Any) -> Any:
        batch_size, height, width, channels = keras.ops.shape(images)
        num_patches_h = height // self.patch_size
        num_patches_w = width // self.patch_size
        patches = keras.ops.image.extract_patches(images, size=self.patch_size)
        return keras.ops.reshape(
            patches,
            (batch_size, num_patches_h * num_patches_w, self.patch_size * self.patch_size * channels),
        )


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    return vision_transformer.train(ctx, callbacks=callbacks, make_patches=Patches)
