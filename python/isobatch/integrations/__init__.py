"""isobatch inside other people's training code. Each part imports its library when it is used."""
