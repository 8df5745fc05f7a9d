"""One module for each command: parse, call api, print."""
