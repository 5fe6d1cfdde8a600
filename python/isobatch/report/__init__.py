"""Plans, fleets, sweeps and validations as a page that people read: one self-contained HTML file."""
