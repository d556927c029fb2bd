"""What Penstock is measured by: `python -m bench` (see docs/benchmarks.md)."""
