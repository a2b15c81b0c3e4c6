"""A submission to the competition: one file that needs Python, torch and CUDA, and not nibblas."""

from __future__ import annotations

import nibblas
from nibblas.competition.bundle import Bundle
from nibblas.competition.kernel_text import kernel_text
from nibblas.plan.sm100 import DEFAULT_PRESET, Preset, preset_named, source_of

HEADER = """\
#!POPCORN leaderboard nvfp4_group_gemm
#!POPCORN gpu B200
"""
"""What the competition's command line reads: popcorn-cli of gpu-mode, README, "Submission"."""

FORBIDDEN = "stream"
"""The competition's bot refuses a file that has this word anywhere, in any case."""


def submission_text(preset: Preset = DEFAULT_PRESET) -> str:
    """The text of ``nibblas.competition.submission`` with all that it uses, kernel included.

    Args:
        preset: which set of configurations it has.

    Raises:
        ValueError: an unknown preset; or the text would be refused by the bot.
    """
    preset = preset_named(preset, "preset")
    kernel = kernel_text(source_of(preset))
    if '"""' in kernel:
        raise ValueError('the kernel has """ in it, which would end its literal')
    constants = {"PRESET": f'"{preset}"', "KERNEL": f'r"""{kernel}"""'}
    origin = f"# nibblas {nibblas.__version__}, nibblas competition export --preset {preset}\n"
    text = HEADER + origin + Bundle("nibblas.competition.submission", constants).text()
    refused = [n for n, line in enumerate(text.splitlines(), 1) if FORBIDDEN in line.lower()]
    if refused:
        raise ValueError(f"the bot refuses the word {FORBIDDEN!r}, which is in lines {refused}")
    return text
