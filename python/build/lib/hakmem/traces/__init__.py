"""What a program allocated: written down, summed up, run again."""
