"""What a plugin package is: manifest, layout, artwork, wheels, declarations, policy; and its way into an experiment."""
