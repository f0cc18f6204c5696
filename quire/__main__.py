"""Makes `python -m quire` run the `quire` command."""

from quire.cli import main

main()
