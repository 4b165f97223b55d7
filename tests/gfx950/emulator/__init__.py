from .errors import EmulationError
from .program import Program, unknown_instructions
from .run import Stats, launch

__all__ = ["EmulationError", "Program", "Stats", "launch", "unknown_instructions"]
