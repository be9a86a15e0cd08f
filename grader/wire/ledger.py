"""Defines the kinds of the entries in a meter's ledger: see ``rank.meter.Meter``."""

# PRODUCT: a product of matrices. SEND: a send. ENTRIES: an operator that computes a loss, whose
# amount is the number of entries.
KINDS = PRODUCT, SEND, ENTRIES = "product", "send", "entries"
