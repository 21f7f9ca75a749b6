"""The language: the `kernel` decorator, the tracer, tensors, fragments and what can be done with them."""
