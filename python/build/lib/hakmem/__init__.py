"""The `hakmem` command. A wheel has the libraries and helper programs beside it, in lib/."""
