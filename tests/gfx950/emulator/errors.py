"""What the emulator raises."""


class EmulationError(Exception):
    """The program did what no right program does, or what the emulator does not know.

    The launch adds the place: workgroup, wave and line of the text.
    """
