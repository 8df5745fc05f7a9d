"""What the versions of Keras 3 have under different names."""

from __future__ import annotations

from typing import Any

from keras.src import backend
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.trainers import trainer

# 3.16 calls its classes BaseTrainer and Trainer, and has the variable's in another module.
BaseTrainer: Any = getattr(trainer, "BaseTrainer", None) or trainer.Trainer
TensorFlowTrainer: Any = getattr(tf_trainer, "TensorFlowTrainer", None) or tf_trainer.Trainer
BackendVariable: Any = next(one for one in backend.Variable.__mro__ if "_direct_assign" in vars(one))
