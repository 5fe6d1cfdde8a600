"""The census: heads, trainers and losses of the field, built tiny and asked by `ib.same_model`."""
