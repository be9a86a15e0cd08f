"""Defines the kinds of the entries in a meter's ledger: see ``rank.meter.Meter``."""

# A product of matrices, a send, and an operator that works entry by entry, as in a loss.
KINDS = PRODUCT, SEND, ENTRIES = "product", "send", "entries"
