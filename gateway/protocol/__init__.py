"""Requests and responses of the HTTP API as typed structs: OpenAI's protocol, plus the extensions of vLLM."""
