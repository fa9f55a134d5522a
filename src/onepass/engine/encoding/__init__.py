"""A request into token ids, segments and read-outs."""
