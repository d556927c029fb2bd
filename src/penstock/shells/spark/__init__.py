"""The real world: workers are Spark tasks, channels and the control plane are ZeroMQ sockets."""
