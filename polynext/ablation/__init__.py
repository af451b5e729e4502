"""The paper's ablations as runnable experiments.

`rows.py` has every row, `sweep.py` trains them and `report.py` shows them; `polynext.models.dropin` puts the
polynomial modules into other networks.
"""
