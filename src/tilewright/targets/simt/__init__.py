"""What targets that run one program per thread share: who moves what, the text of copies and arithmetic."""
