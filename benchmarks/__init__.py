"""What is measured: models, data, and every way of spreading a training step over devices."""
