"""Prints the page."""

from quire.compatibility.page import compatibility_page

print(compatibility_page(), end="")
