"""Generates the page on compatibility with vLLM: `python -m quire.compatibility > docs/compatibility.md`."""
