"""From change to destination: route, render, deliver; and the lanes that remember how far each destination has got."""
