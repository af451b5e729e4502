"""A fully polynomial network on encrypted images.

A circuit (`polynext.circuit`) becomes a `Plan`: packing, CKKS parameters and the bill. The server keeps the plan's
circuit, publishes its `Offer`, and answers; the client makes keys for the offer, encrypts and decrypts. Start with
`planner.py`; `program.py` and `execution.py` are the computation itself.
"""
