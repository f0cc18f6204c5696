"""Requests and their callers: each request from start to end, while it waits or runs, on one worker after another."""
