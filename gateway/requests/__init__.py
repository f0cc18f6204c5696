"""Generation and pooling requests: validation, conversion to the services' types, and the state of live requests."""
