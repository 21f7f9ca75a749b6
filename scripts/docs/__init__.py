"""The documentation site, built by `sh dev docs`."""
