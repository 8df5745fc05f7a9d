"""What a trained model is used for: batch inference over files, and other formats of the model."""
