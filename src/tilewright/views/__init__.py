"""Views map tensor coordinates to buffer offsets. This package has views, transforms, and queries on them."""
