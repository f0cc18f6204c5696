"""Routes for operators. Each module handles one subject; the registry combines their `ROUTES`."""
