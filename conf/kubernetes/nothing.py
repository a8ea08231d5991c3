"""Does nothing: Spark resolves its packages before it runs a program."""
