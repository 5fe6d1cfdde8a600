"""Plans, fleets, counts and validations as pages for people: one self-contained HTML file each."""
