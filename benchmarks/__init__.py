"""Timings side by side, as ratios, each with where they come from.

A benchmark is a module in this folder with two functions: ``run(quick)`` returns what it measured
as a dictionary that JSON can hold, and ``report(results)`` turns that dictionary into Markdown.
``python -m benchmarks`` finds the modules by themselves; there is no list to extend.
"""
