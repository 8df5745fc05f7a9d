"""Runs in other tools' lists of experiments: MLflow. It reads a run's record and metrics from storage."""
