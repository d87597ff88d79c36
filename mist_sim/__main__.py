"""`python -m mist_sim` is `mist`."""

from mist_sim.cli import main

if __name__ == "__main__":
    main()
