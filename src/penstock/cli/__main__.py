"""`python -m penstock.cli`, for when the console script is not on the path."""

from penstock.cli import main

main()
