"""The faults that `benchmarks/faults.py` inflicts, one kind of fault per module; every trial is drawn from a seed."""
