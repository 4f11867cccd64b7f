"""What `hakmem` has in the source tree beside the package that is shipped."""
