"""Where durable records are kept: the protocol, and its backends."""
