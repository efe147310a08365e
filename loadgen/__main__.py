"""`python -m loadgen` is `lanewise-load`."""

from loadgen.cli import main

if __name__ == "__main__":
    main()
