"""The language: the `kernel` decorator, the tracer, tensors, fragments and their operations."""
