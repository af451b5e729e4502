"""Speed and memory of networks side by side, in one run. `candidates.py` says what is run, `measure.py` how."""
