"""The set of compiled programs: what is in it, what each computes, and where they are kept on disk."""
