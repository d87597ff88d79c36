"""A request's way from stage to stage: the walk, the choice of a client, places taken ahead."""
