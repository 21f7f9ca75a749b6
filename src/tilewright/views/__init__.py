"""Views: from coordinates of a tensor to offsets in a buffer, their transforms, and what they answer."""
