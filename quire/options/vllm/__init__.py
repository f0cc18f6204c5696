"""vLLM's flags and environment variables, and what each of them does here."""
