"""HTTP endpoints: one module per family of the API."""
