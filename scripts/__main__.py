"""`python -m compactd.scripts` is `compactd`."""

from compactd.scripts.main import main

if __name__ == "__main__":
    main()
