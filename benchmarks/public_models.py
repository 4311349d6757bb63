"""Runs `benchmarks.coverage.public_models`, whose name this was. It goes with version 0.4."""

from benchmarks.coverage.public_models import main

if __name__ == "__main__":
    main()
