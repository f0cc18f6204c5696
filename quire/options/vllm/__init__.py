"""What users of vLLM type, by its names there: flags and variables, and what becomes of them here."""
