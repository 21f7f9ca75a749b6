"""The shared base of targets with one program per thread: copies, arithmetic and their text."""
