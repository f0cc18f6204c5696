"""Parallelism: process groups as values, never as globals."""
