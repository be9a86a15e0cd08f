"""What the ranks did: which operations, in which order, with how many bytes; and why nothing moves any more.

``recorder`` runs inside a rank. The rest reads what it wrote, on the judge's side.
"""
