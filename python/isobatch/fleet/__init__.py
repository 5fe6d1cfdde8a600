"""Many plans: tables of jobs and clusters in, tables of plans out."""
