DEFAULTS = {"units": 24, "epochs": 3, "batch_size": 40}
