"""The ``nibblas`` command: info, explain, check and competition. Needs the ``cli`` extra."""
