"""Where examples are read from: files, object stores, arrays, Ray Datasets. `order` decides their order."""
