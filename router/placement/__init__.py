"""Decides which worker a request goes to, and records why."""
