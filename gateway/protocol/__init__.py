"""The OpenAI protocol as typed structs, requests and answers, with the extensions that vLLM's clients know."""
