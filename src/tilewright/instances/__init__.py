"""Device GEMMs as Composable Kernel tunes them: instances, what is legal for them, what they are here."""
