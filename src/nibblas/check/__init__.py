"""Random problems checked against the float64 oracle, and the bit-exact checks.

``problems`` draws a problem from ``(seed, index)``, ``tensors`` builds its tensors with poison
around everything that a result must not depend on, ``verdict`` judges one run, ``exact`` holds the
checks that allow no error at all, ``sweep`` runs many problems and counts what they covered.
"""
