"""Other libraries' ways in. Each module here imports its library, so import it by name."""
