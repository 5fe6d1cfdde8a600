"""Is a training the same at another split of its batch?

The user's own command is started at several splits, and the runs are compared.
"""
