"""Other clients' names for this package's clients: programs move over by changing their imports."""
