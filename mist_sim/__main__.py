"""`python -m mist_sim` is `mist`, which imports nothing from the working directory."""

import os
import sys

if __name__ == "__main__":
    # Python puts that directory first, where it stays if this package itself comes from there
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if not sys.flags.safe_path and sys.path[0] != home:
        del sys.path[0]

    from mist_sim.cli import main

    main()
