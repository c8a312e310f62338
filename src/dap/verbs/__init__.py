"""The functions behind the command line: each imports what it needs when it is called, so that help is instant."""
