"""`python -m accel`."""

from accel.cli import main

if __name__ == "__main__":
    main()
