"""The page that says what of vLLM works here: `python -m quire.compatibility > docs/compatibility.md`."""
