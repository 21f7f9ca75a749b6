"""The elementwise functions, one row each: what they take and mean, how C calls them, how exact they are."""
