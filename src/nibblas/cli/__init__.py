"""The ``nibblas`` command: info, explain, check, competition, emulate. Needs the ``cli`` extra."""
