"""Machine code for gfx950, made and counted on a machine without such a GPU."""
