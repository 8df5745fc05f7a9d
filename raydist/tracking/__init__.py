"""Runs in other tools' lists of experiments."""
