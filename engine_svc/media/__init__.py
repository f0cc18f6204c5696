"""Images for vision-language models: how they are encoded, and where they stand."""
