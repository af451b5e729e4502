"""Semantic segmentation: UPerNet on any backbone (Section 4.5).

Read `upernet.py` for the network, `config.py` for what a run is defined by, `engine.py` for how it goes.
"""
