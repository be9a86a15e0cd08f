"""Worlds of rank processes: started from a warm server, talked to in frames, gone when no check can use them any more.

``world`` is the judge's side. ``server``, ``keeper``, ``rank``, ``drivers`` and ``tensors`` run with the student's code or
beside it; they hold nothing secret and import nothing of the judge. ``frames`` is the language that both sides speak.
"""
