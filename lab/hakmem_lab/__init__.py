"""Measures hakmem beside other allocators."""
