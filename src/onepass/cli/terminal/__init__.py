"""What a person sees on a terminal: tables of text, progress, interrupts, warnings."""
