"""Run the table: ``python -m tools.strangers``."""

from __future__ import annotations

from tools.strangers.command import main

if __name__ == "__main__":
    raise SystemExit(main())
