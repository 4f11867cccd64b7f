"""Tables, and pages with plots."""
