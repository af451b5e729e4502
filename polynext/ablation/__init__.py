"""The paper's ablations as runnable experiments.

`rows.py` has every row, `sweep.py` trains them and `report.py` shows them; `dropin.py` puts the polynomial modules into
other networks.
"""
