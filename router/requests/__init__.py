"""Requests and who sends them: each from its start to its end, waiting or on as many workers as it takes."""
