"""One replica's part of a batch, a loss, a gradient and a metric, and checks that the parts add up."""
