"""`python -m isobatch`."""

from isobatch.cli import main

raise SystemExit(main())
