"""The paper's tables and figures, each one command, each leaving one record."""
