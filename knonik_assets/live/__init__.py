"""Live capture: frames pushed from Python, or told of line by line on standard input, become episodes."""
